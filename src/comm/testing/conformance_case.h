// A case of the conformance suite: one operation with one choice per parameter
// that may matter.
//
// Every backend must pass every valid case. The full grid takes long, so by
// default the suite runs a selection in which every valid pair of choices
// occurs at least once (most faults show with two).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/operation/operation.h"
#include "src/comm/testing/random_elements.h"

namespace lockstep {

// How the elements are divided into buffers. The last is for the kinds that
// have an uneven form, and gives some ranks nothing.
enum class Cut { kOneBuffer, kSeveralBuffers, kManyWithEmptyOnes, kPerRank };
// Where the buffers lie: in memory of the group's allocate(), in ordinary
// memory at an odd multiple of the element's size, or the former on even ranks
// only.
enum class Memory { kGroup, kOrdinary, kEvenRanksGroup };

struct ConformanceCase {
  int ranks = 1;
  DataType type = DataType::kFloat32;
  OperationKind kind = OperationKind::kAllReduce;
  ReduceOp reduction = ReduceOp::kSum;  // of the kinds that reduce
  // In all buffers of a rank together, without other ranks' blocks.
  std::int64_t elements = 0;
  Cut cut = Cut::kOneBuffer;
  Memory memory = Memory::kGroup;
  // For a backend that may first reduce an all_reduce within each of two hosts:
  // the number of ranks on the first host. Otherwise 0.
  int first_host = 0;
  // kExact for a backend that may add in any order.
  Elements floats = Elements::kMixed;
};

std::string describe(const ConformanceCase& c);

// Every valid case for groups of `ranks` ranks.
std::vector<ConformanceCase> all_cases(int ranks);

// The world sizes of the suite.
inline constexpr std::array kConformanceWorldSizes{1, 2, 3, 4, 8};

// A selection from all_cases() of these world sizes, in which every valid pair
// of choices occurs, and the number of pairs.
struct Selection {
  std::vector<ConformanceCase> cases;
  std::size_t pairs = 0;
};
Selection pairwise_cases();

// The cases that a group of `ranks` ranks runs: those of the selection, or all
// with LOCKSTEP_WHOLE_GRID in the environment.
std::vector<ConformanceCase> chosen_cases(int ranks);

// Those of these cases that run on GPUs: without the bitwise reductions, which
// NCCL lacks. With kExact also without averages that cannot be exact.
std::vector<ConformanceCase> cases_on_gpus(int ranks, Elements floats);

}  // namespace lockstep
