// Determines the ranks at fault from the records of a job's ranks.
//
// Errors are traced to their cause: a rank that failed because of another names
// that rank, and the chain ends at a rank that died, ranks that called
// different operations, a rank that did not join or a lost network. Without an
// error (the user requested the records) the verdict follows from the ranks'
// waits.
#pragma once

#include <string>
#include <vector>

#include "apps/blame/blame_evidence.h"
#include "apps/blame/blame_root.h"

namespace lockstep {

// Ranks that made the same call.
struct Call {
  std::string call;
  std::vector<int> ranks;  // of the job
};

struct BlameVerdict {
  RootFault fault = RootFault::kNone;
  std::vector<int> ranks{};  // at fault; ranks of the job
  std::string group{};       // empty: no group
  std::string operation{};   // as in describe()
  std::string paragraph{};   // what happened, in full sentences
  std::string likely{};      // may be empty
  std::string next{};
  std::vector<Call> calls{};  // of a disagreement: each rank's call
};

BlameVerdict judge(const Evidence& evidence);

}  // namespace lockstep
