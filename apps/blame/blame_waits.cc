#include "apps/blame/blame_waits.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep {
namespace {

OperationKind kind_of(const OperationRecord& operation) {
  return static_cast<OperationKind>(operation.signature.kind);
}

// The latest group of that name; a name can be reused after its group was left.
const GroupRecord* find_group(const RankRecord& rank, const std::string& name) {
  const auto found = std::ranges::find(rank.groups.rbegin(), rank.groups.rend(),
                                       name, &GroupRecord::name);
  return found == rank.groups.rend() ? nullptr : &*found;
}

// Whether rank `r` of the job has started the group's collective.
bool has_come(const Evidence& evidence, int r, const std::string& group,
              std::uint64_t sequence) {
  const RankRecord* rank = evidence.find(r);
  if (rank == nullptr) return false;
  const GroupRecord* theirs = find_group(*rank, group);
  return theirs != nullptr && theirs->last_started >= sequence;
}

std::vector<int> late_ranks(const Evidence& evidence, const GroupRecord& group,
                            const OperationRecord& operation) {
  std::vector<int> late;
  if (is_point_to_point(kind_of(operation))) {
    if (operation.peer >= 0 && operation.peer < group.size)
      late.push_back(group.rank_in_job(operation.peer));
    return late;
  }
  for (int r = 0; r < group.size; ++r) {
    const int in_job = group.rank_in_job(r);
    if (!has_come(evidence, in_job, group.name, operation.signature.sequence))
      late.push_back(in_job);
  }
  return late;
}

Wait to_wait(const Evidence& evidence, const RankRecord& rank,
             const OperationRecord& operation) {
  Wait wait{.rank = &rank,
            .group = rank.find_group(operation.group),
            .operation = &operation};
  if (wait.group != nullptr)
    wait.late = late_ranks(evidence, *wait.group, operation);
  return wait;
}

using Place = std::pair<std::string, std::uint64_t>;  // group, sequence

}  // namespace

double Wait::seconds() const {
  const bool over = operation->state != OperationState::kStarted;
  return std::max(
      (over ? operation->ended_at : rank->written_at) - operation->started_at,
      0.0);
}

std::optional<Wait> find_wait(const Evidence& evidence, const RankRecord& rank,
                              std::uint64_t number) {
  for (const OperationRecord& operation : rank.operations)
    if (operation.number == number) {
      Wait wait = to_wait(evidence, rank, operation);
      if (wait.group != nullptr) return wait;
    }
  return std::nullopt;
}

std::vector<Wait> find_waits(const Evidence& evidence) {
  std::vector<Wait> waits;
  for (const RankRecord& rank : evidence.records)
    for (const OperationRecord& operation : rank.operations) {
      const bool goes_on =
          operation.state == OperationState::kStarted && operation.awaited;
      if (!goes_on) continue;
      Wait wait = to_wait(evidence, rank, operation);
      if (wait.group == nullptr || wait.group->left) continue;
      waits.push_back(std::move(wait));
      break;
    }
  return waits;
}

std::optional<Disagreement> find_disagreement(const Evidence& evidence) {
  std::map<Place, Disagreement> places;
  for (const RankRecord& rank : evidence.records)
    for (const OperationRecord& operation : rank.operations) {
      const GroupRecord* group = rank.find_group(operation.group);
      if (group == nullptr || is_point_to_point(kind_of(operation))) continue;
      Disagreement& place = places[{group->name, operation.signature.sequence}];
      if (place.group == nullptr) place.group = group;
      place.callers.push_back({rank.rank, &operation});
    }
  const auto differs = [](const auto& entry) {
    const auto& callers = entry.second.callers;
    return std::ranges::any_of(callers, [&](const auto& caller) {
      return caller.operation->signature !=
             callers.front().operation->signature;
    });
  };
  const auto found = std::ranges::find_if(places, differs);
  if (found == places.end()) return std::nullopt;
  return found->second;
}

}  // namespace lockstep
