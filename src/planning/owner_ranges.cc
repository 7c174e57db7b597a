#include "src/planning/owner_ranges.h"

#include <utility>

namespace lockstep {
namespace {

using Range = OwnerRanges::Range;

// Appends `range` to `list`, or extends the last range if `range` continues it.
void add(std::vector<Range>& list, const Range& range) {
  if (range.elements == 0) return;
  if (!list.empty() && list.back().begin + list.back().elements == range.begin)
    list.back().elements += range.elements;
  else
    list.push_back(range);
}

}  // namespace

OwnerRanges owner_ranges(const ShardPlan& plan,
                         std::span<const GradientPlace> gradients) {
  std::vector<std::vector<Range>> of_rank(plan.ranks.size());
  OwnerRanges result;
  for (const auto& [parameter, begin, elements] : gradients) {
    if (!parameter) {
      add(result.of_nobody, {begin, elements});
      continue;
    }
    for (const ShardPlan::Owner& owner : plan.parameters[*parameter]) {
      const ShardPlan::Piece& piece = plan.piece(owner);
      add(of_rank[owner.rank], {begin + piece.begin, piece.elements});
    }
  }
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank)
    for (std::size_t i = 0; i < of_rank[rank].size(); ++i) {
      if (i == result.rounds.size()) result.rounds.emplace_back(of_rank.size());
      result.rounds[i][rank] = of_rank[rank][i];
    }
  return result;
}

}  // namespace lockstep
