#include "src/comm/operation/awaited_ranks.h"

#include <algorithm>
#include <map>
#include <set>

namespace lockstep {
namespace {

class Chains {
 public:
  explicit Chains(const AskingRank& asking) : asking_(asking) {
    if (asking.awaited) waits_[asking.rank] = asking.awaited;
  }

  void add(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (rank < 0 || rank >= asking_.size || rank == asking_.rank ||
          std::ranges::find(found_, rank) != found_.end())
        continue;
      found_.push_back(rank);
      silent_.push_back(rank);
    }
  }

  const std::vector<int>& silent() const { return silent_; }

  void add(const WaitingRank& waiting) {
    std::erase(silent_, waiting.rank);
    waits_[waiting.rank] = waiting.awaited;
    add(next(waiting.rank));
  }

  // In the order in which they were found.
  std::vector<int> ends() const {
    const std::set<int> circles = ranks_in_circles();
    std::vector<int> ends;
    for (const int rank : found_) {
      const auto waits = waits_.find(rank);
      const bool is_end = waits == waits_.end() || circles.contains(rank) ||
                          (waits->second && waits->second->any_suffices);
      if (is_end) ends.push_back(rank);
    }
    return ends;
  }

 private:
  // The ranks without each of which `rank` cannot go on.
  const std::vector<int>& next(int rank) const {
    static const std::vector<int> none;
    const auto waits = waits_.find(rank);
    return waits == waits_.end() || !waits->second ||
                   waits->second->any_suffices
               ? none
               : waits->second->ranks;
  }

  // What remains of the ranks that wait when those are removed, again and
  // again, that wait for no other one, or that no other one waits for.
  std::set<int> ranks_in_circles() const {
    std::set<int> left;
    for (const auto& [rank, awaited] : waits_) left.insert(rank);
    for (std::size_t before = 0; before != left.size();) {
      before = left.size();
      std::set<int> awaited;
      std::set<int> waiting;
      for (const int rank : left)
        for (const int other : next(rank))
          if (other != rank && left.contains(other)) {
            waiting.insert(rank);
            awaited.insert(other);
          }
      std::erase_if(left, [&](int rank) {
        return !waiting.contains(rank) || !awaited.contains(rank);
      });
    }
    return left;
  }

  const AskingRank& asking_;
  std::vector<int> found_;   // all ranks of the chains but `asking_`
  std::vector<int> silent_;  // of these, those not known to wait
  std::map<int, std::optional<AwaitedRanks>> waits_;
};

}  // namespace

std::vector<int> ends_of_waits(const AwaitedRanks& awaited,
                               const AskingRank& asking,
                               const FindWaiting& find_waiting) {
  if (awaited.any_suffices) return awaited.ranks;
  Chains chains(asking);
  chains.add(awaited.ranks);
  while (!chains.silent().empty()) {
    const auto waiting = find_waiting(chains.silent());
    if (!waiting) break;
    chains.add(*waiting);
  }
  std::vector<int> ends = chains.ends();
  return ends.empty() ? awaited.ranks : ends;
}

}  // namespace lockstep
