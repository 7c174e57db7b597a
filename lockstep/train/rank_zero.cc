#include "lockstep/train/rank_zero.h"

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kFine = -1;

// What went wrong on rank 0, on every rank; nothing is kFine bytes long.
void share(ProcessGroup& group, std::string_view place,
           const std::string* problem) {
  std::vector<std::int64_t> length{
      problem ? static_cast<std::int64_t>(problem->size()) : kFine};
  group.broadcast(view(length), 0, {.place = place}).wait();
  if (length[0] == kFine) return;
  std::vector<std::uint8_t> text(static_cast<std::size_t>(length[0]));
  if (problem) text.assign(problem->begin(), problem->end());
  group.broadcast(view(text), 0, {.place = place}).wait();
  if (problem) return;
  throw Error(std::string(place) + " failed on rank 0, and with it on rank " +
              std::to_string(group.rank()) + " of " +
              std::to_string(group.size()) + ":\n" +
              std::string(text.begin(), text.end()));
}

}  // namespace

void run_on_rank_zero(ProcessGroup& group, std::string_view place,
                      const std::function<void()>& action) {
  if (group.rank() != 0) return share(group, place, nullptr);
  try {
    action();
  } catch (const std::exception& error) {
    const std::string problem = error.what();
    share(group, place, &problem);
    throw;
  }
  share(group, place, nullptr);
}

}  // namespace lockstep
