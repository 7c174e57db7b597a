#include "lockstep/tools/blame/blame_root.h"

#include <algorithm>
#include <set>
#include <vector>

namespace lockstep {
namespace {

Fault fault_of(const FailureRecord& failure) {
  if (failure.type == "Mismatch") return Fault::kDisagreement;
  if (failure.type == "Timeout") return Fault::kAbsence;
  if (failure.type == "NetworkError") return Fault::kNetwork;
  if (failure.type == "PeerFailure") return Fault::kDeath;
  return Fault::kOther;
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
    if (ends_here) return {Fault::kDeath, failure->culprit, witness, failure};
    witness = culprit;
  }
}

bool died_by_signal(const Evidence& evidence, int rank) {
  return evidence.job && evidence.job->rank == rank &&
         evidence.job->signal != 0;
}

// Causes come first: a mismatch or a death ends ranks; ranks that only waited
// come last.
int order(const Evidence& evidence, const Root& root) {
  switch (root.fault) {
    case Fault::kDisagreement:
      return 0;
    case Fault::kDeath:
      return died_by_signal(evidence, root.rank) ? 1 : 2;
    case Fault::kAbsence:
      return 3;
    case Fault::kNetwork:
      return 4;
    case Fault::kOther:
    case Fault::kNone:
    case Fault::kCircle:
    case Fault::kStuck:
      break;
  }
  return 5;
}

}  // namespace

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
    case Fault::kDeath:
      return "death";
    case Fault::kDisagreement:
      return "disagreement";
    case Fault::kAbsence:
      return "absence";
    case Fault::kCircle:
      return "circle";
    case Fault::kStuck:
      return "stuck";
    case Fault::kNetwork:
      return "network";
    case Fault::kOther:
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
  // have seen.
  const auto& job = evidence.job;
  if (job) {
    const RankRecord* record = evidence.find(job->rank);
    if (record == nullptr || first_failure(*record) == nullptr)
      roots.push_back({Fault::kDeath, job->rank, nullptr, nullptr});
  }
  if (roots.empty()) return std::nullopt;
  return *std::ranges::min_element(
      roots, {}, [&](const Root& root) { return order(evidence, root); });
}

}  // namespace lockstep
