// The waits and calls in the records of a job's ranks, from which a verdict
// follows.
//
// Pointers lead into the evidence, which must outlive them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/blame/blame_evidence.h"

namespace lockstep {

// A rank in an operation that makes, or made, no progress.
struct Wait {
  const RankRecord* rank = nullptr;
  const GroupRecord* group = nullptr;
  const OperationRecord* operation = nullptr;
  std::vector<int> late{};  // ranks of the job that have not joined

  // The time until the wait ended or the record was written.
  double seconds() const;
};

// The wait of `rank` in its operation `number`; nothing when its record no
// longer holds that operation.
std::optional<Wait> find_wait(const Evidence& evidence, const RankRecord& rank,
                              std::uint64_t number);

// The current waits: every rank's oldest operation that its program waits for.
std::vector<Wait> find_waits(const Evidence& evidence);

// The first collective of a group for which its members made different calls,
// with each member's call.
struct Disagreement {
  const GroupRecord* group = nullptr;
  struct Caller {
    int rank = 0;  // of the job
    const OperationRecord* operation = nullptr;
  };
  std::vector<Caller> callers{};
};
std::optional<Disagreement> find_disagreement(const Evidence& evidence);

}  // namespace lockstep
