// Traces the errors of a job's ranks back to the one that caused the others.
//
// Pointers lead into the evidence, which must outlive them.
#pragma once

#include <optional>
#include <string_view>

#include "apps/blame/blame_evidence.h"

namespace lockstep {

enum class RootFault {
  kNone,          // no error, and no rank waits
  kDeath,         // a rank's process ended
  kDisagreement,  // ranks called different operations
  kAbsence,       // ranks did not join an operation
  kCircle,        // ranks wait for each other, in a circle
  kStuck,         // all ranks joined an operation that makes no progress
  kNetwork,       // a connection or the store was lost
  kOther,         // an error of another kind
};

// "death", "disagreement", …
std::string_view name_of(RootFault fault);

// The root cause of an error.
struct Root {
  RootFault fault = RootFault::kOther;
  int rank = 0;  // the rank that died or raised the error
  // The reporting rank and its error; both null when only the launcher reports.
  const RankRecord* witness = nullptr;
  const FailureRecord* failure = nullptr;
};

// Null when it has no error.
const FailureRecord* first_failure(const RankRecord& rank);

// Nothing when no rank has an error and no worker failed.
std::optional<Root> find_root(const Evidence& evidence);

}  // namespace lockstep
