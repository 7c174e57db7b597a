// The collectives into which faults are injected, each as one call on the same
// memory, and their expected results.
//
// Threads: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
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

// As in messages: "all_gather_v".
std::string_view name_of(Call call);

// A call's input and output memory, `elements` floats each.
struct CallMemory {
  static constexpr std::int64_t kElements = std::int64_t{1} << 18;

  static CallMemory shared(ProcessGroup& group,
                           std::int64_t elements = kElements);
  static CallMemory ordinary(std::int64_t elements = kElements);

  void fill(float value) const;
  // The number of elements that differ from `value`.
  std::int64_t differing_from(float value) const;

  std::int64_t elements = 0;
  std::shared_ptr<float> in;
  std::shared_ptr<float> out;
};

// Each rank sends or receives `per_rank` elements; the memory must hold size()
// times as many.
Work start_call(ProcessGroup& group, Call call, const CallMemory& memory,
                std::int64_t per_rank, int root);

// A message to the next rank and one from the rank before.
std::vector<Work> start_messages(ProcessGroup& group, const CallMemory& memory,
                                 std::int64_t elements);

// The facts about a call, or about messages, that determine the result.
struct KnownCall {
  std::optional<Call> call{};  // nothing: messages
  int rank = 0;
  int ranks = 1;
  int root = 0;
  std::int64_t per_rank = 0;
  unsigned number = 0;  // different numbers give different elements

  // Fills the call's input before it starts.
  void fill(const CallMemory& memory) const;
  // The number of wrong elements in this rank's complete result.
  std::int64_t count_wrong(const CallMemory& memory) const;

 private:
  std::int64_t elements_read() const;
  std::int64_t elements_of_result() const;
  float brought(int by, std::int64_t i) const;
  float greatest(std::int64_t i) const;
  float expected(std::int64_t i) const;
};

}  // namespace lockstep
