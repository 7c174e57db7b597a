// The errors that left the waits of a job's ranks, led back to the one that
// caused the others.
//
// Pointers lead into the evidence, which must outlive them.
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/tools/blame_evidence.h"

namespace lockstep {

enum class Fault {
  kNone,          // no error, and nobody waits
  kDeath,         // a rank's process ended
  kDisagreement,  // ranks called operations that do not fit together
  kAbsence,       // ranks did not come to an operation
  kCircle,        // ranks wait for each other, in a circle
  kStuck,         // all have come to an operation, which does not go on
  kNetwork,       // a connection or the store was lost
  kOther,         // an error of another kind
};

// "death", "disagreement", …
std::string_view name_of(Fault fault);

// What an error leads back to.
struct Root {
  Fault fault = Fault::kOther;
  int rank = 0;  // that died, or whose error it is
  // Who tells, and what; both null when only the launcher does.
  const RankRecord* witness = nullptr;
  const FailureRecord* failure = nullptr;
};

// Null when it has none.
const FailureRecord* first_failure(const RankRecord& rank);

// Nothing when no rank has an error, and no worker ended badly.
std::optional<Root> find_root(const Evidence& evidence);

}  // namespace lockstep
