#include "src/checkpoint/rank_zero.h"

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"

namespace lockstep {
namespace {

constexpr std::int64_t kFine = -1;

[[noreturn]] void fail_too(ProcessGroup& group, std::string_view label,
                           std::size_t rank, const std::string& problem) {
  const GroupCore& core = group.core();
  if (core.world())
    core.world()->recorder()->note_fault(
        {.kind = FaultNote::Kind::kPeerError,
         .culprit = culprit_in_job(core.identity(), static_cast<int>(rank)),
         .operation = std::string(label)},
        Recorder::AfterFault::kLeavesGroups);
  throw Error(std::string(label) + " failed on rank " + std::to_string(rank) +
              ", and therefore on rank " + std::to_string(group.rank()) +
              " of " + std::to_string(group.size()) + ":\n" + problem);
}

// Throws rank 0's error on the other ranks; a length of kFine means success.
void share(ProcessGroup& group, std::string_view label,
           const std::string* problem) {
  std::vector<std::int64_t> length{
      problem ? static_cast<std::int64_t>(problem->size()) : kFine};
  group.broadcast(view(length), 0, {.label = label}).wait();
  if (length[0] == kFine) return;
  std::vector<std::uint8_t> text(static_cast<std::size_t>(length[0]));
  if (problem) text.assign(problem->begin(), problem->end());
  group.broadcast(view(text), 0, {.label = label}).wait();
  if (problem) return;
  fail_too(group, label, 0, std::string(text.begin(), text.end()));
}

}  // namespace

void run_on_rank_zero(ProcessGroup& group, std::string_view label,
                      const std::function<void()>& action) {
  if (group.rank() != 0) return share(group, label, nullptr);
  try {
    action();
  } catch (const std::exception& error) {
    const std::string problem = error.what();
    share(group, label, &problem);
    throw;
  }
  share(group, label, nullptr);
}

void run_on_all_ranks(ProcessGroup& group, std::string_view label,
                      const std::function<void()>& action) {
  std::exception_ptr own;
  std::string problem;
  try {
    action();
  } catch (const std::exception& error) {
    own = std::current_exception();
    problem = error.what();
  }
  // Successful ranks send nothing; the prefix marks an empty message as an
  // error.
  const std::string told = own ? "!" + problem : "";
  const std::vector<Bytes> all =
      all_gather_bytes(group, std::as_bytes(std::span(told)), {.label = label});
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty())
      fail_too(group, label, rank,
               {reinterpret_cast<const char*>(all[rank].data()) + 1,
                all[rank].size() - 1});
}

}  // namespace lockstep
