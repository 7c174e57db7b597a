#include "src/comm/operation/awaited_ranks.h"

#include <algorithm>

namespace lockstep {
namespace {

bool has(const std::vector<int>& ranks, int wanted) {
  return std::ranges::find(ranks, wanted) != ranks.end();
}

}  // namespace

std::vector<int> ends_of_waits(const AwaitedRanks& awaited, int rank, int size,
                               const FindWaiting& find_waiting) {
  if (awaited.any_suffices) return awaited.ranks;
  std::vector<int> found;   // all ranks of the chains, in the order of `ranks`
  std::vector<int> silent;  // not known to wait
  std::vector<int> late;    // because of others
  const auto add = [&](const std::vector<int>& further) {
    for (const int next : further) {
      if (next < 0 || next >= size || next == rank || has(found, next))
        continue;
      found.push_back(next);
      silent.push_back(next);
    }
  };
  add(awaited.ranks);
  while (!silent.empty()) {
    const auto waiting = find_waiting(silent);
    if (!waiting) break;
    std::erase(silent, waiting->rank);
    const auto& theirs = waiting->awaited;
    const bool is_end =
        theirs && (theirs->any_suffices || has(theirs->ranks, rank));
    if (!is_end) late.push_back(waiting->rank);
    if (theirs && !theirs->any_suffices) add(theirs->ranks);
  }
  std::erase_if(found, [&](int next) { return has(late, next); });
  return found.empty() ? awaited.ranks : found;
}

}  // namespace lockstep
