#include "src/comm/testing/conformance_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <set>

namespace lockstep {
namespace {

// The largest size passes through shared memory in several stretches; if each
// rank has a block for every other, a quarter of it does.
std::vector<std::int64_t> sizes_of(OperationKind kind) {
  const bool in_place = kind == OperationKind::kBroadcast ||
                        kind == OperationKind::kAllReduce ||
                        kind == OperationKind::kReduce;
  return {0, 1, 3, 17, 4095, 4097, (in_place ? 1 << 18 : 1 << 16) + 3};
}

// The call, as one choice: an operation and, if it reduces, the reduction.
struct Call {
  OperationKind kind;
  ReduceOp reduction = ReduceOp::kSum;
};

std::vector<Call> all_calls() {
  std::vector<Call> calls;
  for (const OperationKind kind : kAllCollectives) {
    if (!reduces(kind)) calls.push_back({kind});
    if (reduces(kind))
      for (const ReduceOp op : kAllReductions) calls.push_back({kind, op});
  }
  return calls;
}

bool has_uneven_form(OperationKind kind) {
  return kind == OperationKind::kAllGather ||
         kind == OperationKind::kReduceScatter ||
         kind == OperationKind::kAllToAll;
}

// A case as its choices: each number encodes a dimension and a value.
using Choices = std::array<int, 6>;

Choices choices_of(const ConformanceCase& c) {
  return {c.ranks,
          static_cast<int>(c.type),
          static_cast<int>(c.kind) * 16 + static_cast<int>(c.reduction),
          static_cast<int>(c.elements),
          static_cast<int>(c.cut),
          static_cast<int>(c.memory)};
}

// Two choices of different dimensions.
struct Pair {
  int first_dimension, first_value, second_dimension, second_value;
  auto operator<=>(const Pair&) const = default;
};

template <class Visit>
void for_each_pair(const ConformanceCase& c, const Visit& visit) {
  const Choices choices = choices_of(c);
  const int dimensions = static_cast<int>(choices.size());
  for (int i = 0; i < dimensions; ++i)
    for (int j = i + 1; j < dimensions; ++j)
      visit(Pair{i, choices[static_cast<std::size_t>(i)], j,
                 choices[static_cast<std::size_t>(j)]});
}

}  // namespace

std::string describe(const ConformanceCase& c) {
  constexpr std::array kDivisions{"one buffer", "several buffers",
                                  "many buffers, some empty",
                                  "one buffer per rank"};
  constexpr std::array kMemories{"group memory", "ordinary memory",
                                 "group memory on even ranks"};
  return fmt::format("{} {} of {} x {} on {} ranks, {}, {}", name_of(c.kind),
                     reduces(c.kind) ? name_of(c.reduction) : "", c.elements,
                     name_of(c.type), c.ranks,
                     kDivisions[static_cast<std::size_t>(c.cut)],
                     kMemories[static_cast<std::size_t>(c.memory)]);
}

std::vector<ConformanceCase> all_cases(int ranks) {
  std::vector<ConformanceCase> cases;
  const auto add = [&](DataType type, const Call& call, std::int64_t elements) {
    for (const Cut cut : {Cut::kOneBuffer, Cut::kSeveralBuffers,
                          Cut::kManyWithEmptyOnes, Cut::kPerRank}) {
      if (cut == Cut::kPerRank && !has_uneven_form(call.kind)) continue;
      for (const Memory memory :
           {Memory::kGroup, Memory::kOrdinary, Memory::kEvenRanksGroup})
        cases.push_back(
            {ranks, type, call.kind, call.reduction, elements, cut, memory});
    }
  };
  for (const Call& call : all_calls())
    for (const DataType type : kAllDataTypes) {
      if (reduces(call.kind) && !is_defined(call.reduction, type)) continue;
      for (const std::int64_t elements : sizes_of(call.kind))
        add(type, call, elements);
    }
  return cases;
}

// Greedy: of a few dozen cases that bring a missing pair, take the one that
// brings most. Not minimal, but small and always the same.
Selection pairwise_cases() {
  std::vector<ConformanceCase> pool;
  for (const int ranks : kConformanceWorldSizes)
    for (const ConformanceCase& c : all_cases(ranks)) pool.push_back(c);
  std::set<Pair> missing;
  for (const ConformanceCase& c : pool)
    for_each_pair(c, [&](const Pair& pair) { missing.insert(pair); });

  Selection selection{{}, missing.size()};
  constexpr std::size_t kCandidates = 60;
  std::size_t at = 0;
  while (!missing.empty()) {
    const ConformanceCase* best = nullptr;
    int best_gain = 0;
    for (std::size_t tried = 0; tried < kCandidates || best == nullptr;
         ++tried) {
      at = (at + 7919) % pool.size();  // a prime: visits the pool all over
      int gain = 0;
      for_each_pair(pool[at],
                    [&](const Pair& pair) { gain += missing.contains(pair); });
      if (gain <= best_gain) continue;
      best = &pool[at];
      best_gain = gain;
    }
    for_each_pair(*best, [&](const Pair& pair) { missing.erase(pair); });
    selection.cases.push_back(*best);
  }
  std::ranges::stable_sort(selection.cases, {}, &ConformanceCase::ranks);
  return selection;
}

std::vector<ConformanceCase> chosen_cases(int ranks) {
  if (std::getenv("LOCKSTEP_WHOLE_GRID") != nullptr) return all_cases(ranks);
  static const Selection selection = pairwise_cases();
  std::vector<ConformanceCase> cases;
  std::ranges::copy_if(
      selection.cases, std::back_inserter(cases),
      [&](const ConformanceCase& c) { return c.ranks == ranks; });
  return cases;
}

std::vector<ConformanceCase> cases_on_gpus(int ranks, Elements floats) {
  auto cases = chosen_cases(ranks);
  const bool averages_are_exact =
      floats == Elements::kMixed ||
      std::has_single_bit(static_cast<unsigned>(ranks));
  std::erase_if(cases, [&](const ConformanceCase& c) {
    return reduces(c.kind) &&
           (c.reduction == ReduceOp::kBand || c.reduction == ReduceOp::kBor ||
            c.reduction == ReduceOp::kBxor ||
            (c.reduction == ReduceOp::kAverage && !averages_are_exact));
  });
  for (ConformanceCase& c : cases) c.floats = floats;
  return cases;
}

}  // namespace lockstep
