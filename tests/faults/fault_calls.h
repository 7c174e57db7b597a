// The collectives that faults are injected into, each as one call on the same
// memory.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

enum class Call {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kAllGatherV,
  kGather,
  kScatter,
  kReduceScatter,
  kReduceScatterV,
  kAllToAll,
  kAllToAllV,
};

inline constexpr std::array kAllCalls{
    Call::kBarrier,        Call::kBroadcast, Call::kAllReduce,
    Call::kReduce,         Call::kAllGather, Call::kAllGatherV,
    Call::kGather,         Call::kScatter,   Call::kReduceScatter,
    Call::kReduceScatterV, Call::kAllToAll,  Call::kAllToAllV};

// As messages have it: "all_gather_v".
std::string_view name_of(Call call);

// Memory that a call reads and one that it writes, `kElements` floats each.
struct CallMemory {
  static constexpr std::int64_t kElements = std::int64_t{1} << 18;

  static CallMemory shared(ProcessGroup& group);
  static CallMemory ordinary();

  void fill(float value);
  // How many elements are something else.
  std::int64_t differing_from(float value) const;

  std::shared_ptr<float> in;
  std::shared_ptr<float> out;
};

// `per_rank` is how many elements each rank brings or gets; size() times as
// many must fit the memory.
Work start_call(ProcessGroup& group, Call call, const CallMemory& memory,
                std::int64_t per_rank, int root);

// A message to the next rank and one from the rank before.
std::vector<Work> start_messages(ProcessGroup& group, const CallMemory& memory,
                                 std::int64_t elements);

}  // namespace lockstep
