// Who waits for whom, and who called what, as the records of a job's ranks show
// it: the facts that a verdict is made from.
//
// Pointers lead into the evidence, which must outlive them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/tools/blame_evidence.h"

namespace lockstep {

// A rank in an operation that does, or did, not go on.
struct Wait {
  const RankRecord* rank = nullptr;
  const GroupRecord* group = nullptr;
  const OperationRecord* operation = nullptr;
  std::vector<int> late{};  // the ranks of the job that have not come

  // Until it ended, or the record was written.
  double seconds() const;
};

// The wait of `rank` in its operation `number`; nothing when its record has
// forgotten that.
std::optional<Wait> find_wait(const Evidence& evidence, const RankRecord& rank,
                              std::uint64_t number);

// The waits that go on: every rank's oldest operation that its program waits
// for.
std::vector<Wait> find_waits(const Evidence& evidence);

// The first collective of a group that its members called differently: what
// each of them called in that place.
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
