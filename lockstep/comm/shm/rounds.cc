#include "lockstep/comm/shm/rounds.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Of a payload; more would be on their way for longer than there is time.
constexpr std::size_t kTakenBack = 4 << 10;

// A unit takes microseconds, its thread perhaps a while to get a core.
constexpr std::chrono::seconds kLongestUnit{30};

}  // namespace

void Rounds::arrive() {
  ++round_;
  seen_ = 0;
  slot(rank_, round_).round.store(round_);
  bell_.ring();
}

#if defined(__x86_64__)
__attribute__((target("prfchw")))  // elsewhere it would fetch for reading
#endif
void Rounds::take_back_next_slot() {
  const auto* const begin = reinterpret_cast<const std::byte*>(&next_slot());
  const std::byte* const end =
      next_slot().payload + std::min(std::size_t{next_slot().used}, kTakenBack);
  for (const std::byte* at = begin; at < end; at += kCacheLine)
    __builtin_prefetch(at, 1);
}

bool Rounds::all_arrived() {
  while (seen_ < ranks_ && slot(seen_, round_).round.load() >= round_) ++seen_;
  return seen_ == ranks_;
}

std::vector<int> Rounds::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < ranks_; ++r)
    if (slot(r, round_).round.load() < round_) ranks.push_back(r);
  return ranks;
}

// A peer says that it is at work before it takes a unit: one that took its unit
// before there were none left is seen at work until it is through.
void Rounds::end_work(std::span<const int> ranks) {
  std::uint64_t seen = control_.block().claimed.load();
  constexpr std::uint32_t kAll = std::numeric_limits<std::uint32_t>::max();
  while (!control_.block().claimed.compare_exchange_weak(seen, tagged(kAll))) {
  }
  const Deadline deadline(kLongestUnit);
  const auto at_work = [&](int r) { return part_of(r) == Part::kAtWork; };
  while (std::ranges::any_of(ranks, at_work)) {
    if (deadline.expired())
      throw Timeout(
          "a thread of this process does not end its part of a "
          "collective that was given up");
    std::this_thread::yield();
  }
}

std::vector<int> Rounds::unfinished(Work work) const {
  std::vector<int> ranks;
  for (int r = 0; r < ranks_; ++r) {
    const Part part = part_of(r);
    const bool holds_up =
        work == Work::kOwn ? part != Part::kDone : part == Part::kAtWork;
    if (holds_up) ranks.push_back(r);
  }
  return ranks;
}

bool Rounds::claim(std::uint32_t units, std::uint32_t& unit) {
  std::atomic<std::uint64_t>& claimed = control_.block().claimed;
  std::uint64_t seen = claimed.load();
  do {
    unit = count_of(seen);
    if (unit >= units || is_later(seen)) return false;
  } while (!claimed.compare_exchange_weak(seen, tagged(unit + 1)));
  return true;
}

void Rounds::finish(std::uint32_t count) {
  std::atomic<std::uint64_t>& finished = control_.block().finished;
  std::uint64_t seen = finished.load();
  while (
      !finished.compare_exchange_weak(seen, tagged(count_of(seen) + count))) {
  }
  bell_.ring();
}

bool Rounds::all_finished(std::uint32_t units) const {
  return count_of(control_.block().finished.load()) >= units;
}

std::string Rounds::last_seen(int r) const {
  const Slot& even = control_.rank(r).slots[0];
  const Slot& odd = control_.rank(r).slots[1];
  const Slot& latest = even.round.load() > odd.round.load() ? even : odd;
  if (latest.round.load() == 0) return "no operation";
  return describe(latest.signature);
}

}  // namespace lockstep
