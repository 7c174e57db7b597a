#include "apps/blame/blame_root.h"

#include <algorithm>
#include <set>
#include <vector>

namespace lockstep {
namespace {

RootFault fault_of(const FailureRecord& failure) {
  if (failure.type == "Mismatch") return RootFault::kDisagreement;
  if (failure.type == "Timeout") return RootFault::kAbsence;
  if (failure.type == "NetworkError") return RootFault::kNetwork;
  if (failure.type == "PeerFailure") return RootFault::kDeath;
  return RootFault::kOther;
}

// Follows a PeerFailure to the rank it names, and continues from there.
Root trace(const Evidence& evidence, const RankRecord& rank) {
  std::set<int> seen;
  const RankRecord* witness = &rank;
  while (true) {
    const FailureRecord* failure = first_failure(*witness);
    const Root here{fault_of(*failure), witness->rank, witness, failure};
    if (failure->type != "PeerFailure" || failure->culprit < 0) return here;
    seen.insert(witness->rank);
    const RankRecord* culprit = evidence.find(failure->culprit);
    const bool ends_here = culprit == nullptr ||
                           first_failure(*culprit) == nullptr ||
                           seen.contains(culprit->rank);
    if (ends_here)
      return {RootFault::kDeath, failure->culprit, witness, failure};
    witness = culprit;
  }
}

// The launcher saw in which order its workers ended, so it knows the cause:
// see src/faults/root_cause.h. A worker that lost a peer is the cause only
// among others like it, on that host.
bool is_launchers_cause(const Evidence& evidence, int rank) {
  const auto& job = evidence.job;
  return job && job->rank == rank && !job->lost_a_peer;
}

// Causes come first: a mismatch or a death ends ranks; ranks that only waited
// come last.
int order(const Evidence& evidence, const Root& root) {
  switch (root.fault) {
    case RootFault::kDisagreement:
      return 0;
    case RootFault::kDeath:
      return is_launchers_cause(evidence, root.rank) ? 1 : 2;
    case RootFault::kAbsence:
      return 3;
    case RootFault::kNetwork:
      return 4;
    case RootFault::kOther:
    case RootFault::kNone:
    case RootFault::kCircle:
    case RootFault::kStuck:
      break;
  }
  return 5;
}

}  // namespace

std::string_view name_of(RootFault fault) {
  switch (fault) {
    case RootFault::kNone:
      return "none";
    case RootFault::kDeath:
      return "death";
    case RootFault::kDisagreement:
      return "disagreement";
    case RootFault::kAbsence:
      return "absence";
    case RootFault::kCircle:
      return "circle";
    case RootFault::kStuck:
      return "stuck";
    case RootFault::kNetwork:
      return "network";
    case RootFault::kOther:
      return "other";
  }
  return "other";
}

const FailureRecord* first_failure(const RankRecord& rank) {
  const auto first =
      std::ranges::min_element(rank.failures, {}, &FailureRecord::at);
  return first == rank.failures.end() ? nullptr : &*first;
}

std::optional<Root> find_root(const Evidence& evidence) {
  std::vector<Root> roots;
  for (const RankRecord& rank : evidence.records)
    if (first_failure(rank) != nullptr) roots.push_back(trace(evidence, rank));
  // A worker that ended without an error is a cause that other ranks need not
  // have seen, unless it only lost a peer.
  const auto& job = evidence.job;
  if (job && (roots.empty() || !job->lost_a_peer)) {
    const RankRecord* record = evidence.find(job->rank);
    if (record == nullptr || first_failure(*record) == nullptr)
      roots.push_back({RootFault::kDeath, job->rank, nullptr, nullptr});
  }
  if (roots.empty()) return std::nullopt;
  return *std::ranges::min_element(
      roots, {}, [&](const Root& root) { return order(evidence, root); });
}

}  // namespace lockstep
