#include "apps/data/on_threads.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <vector>

namespace lockstep {

void for_each_on_threads(std::int64_t count, int threads,
                         const std::function<void(std::int64_t)>& work) {
  std::atomic<std::int64_t> next{0};
  const auto take_pieces = [&] {
    try {
      for (std::int64_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      next = count;
      throw;
    }
  };
  std::vector<std::future<void>> others;
  const std::int64_t useful = std::min<std::int64_t>(threads, count);
  try {
    for (std::int64_t i = 1; i < useful; ++i)
      others.push_back(std::async(std::launch::async, take_pieces));
  } catch (const std::system_error&) {
    // The host has no more threads: those that exist do the work.
  }
  // A future waits for its thread when it is destroyed, so all end before
  // `next` does, also after an error.
  take_pieces();
  for (std::future<void>& other : others) other.get();
}

}  // namespace lockstep
