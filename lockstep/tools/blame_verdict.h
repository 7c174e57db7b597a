// Who was at fault, judged from the records of all ranks of a job.
//
// Errors lead back to their cause: a rank that gave up because another did
// names that one, and the end of the chain is a rank that died, ranks that
// disagree, a rank that did not come or a network that went away. Without an
// error (the records were asked for) the same is judged from who waits for
// whom.
#pragma once

#include <string>
#include <vector>

#include "lockstep/tools/blame_evidence.h"
#include "lockstep/tools/blame_root.h"

namespace lockstep {

// Ranks that did the same.
struct Call {
  std::string call;
  std::vector<int> ranks;  // of the job
};

struct Verdict {
  Fault fault = Fault::kNone;
  std::vector<int> ranks{};  // at fault; of the job
  std::string group{};       // empty where it concerns none
  std::string operation{};   // as describe() has it
  std::string paragraph{};   // what happened, in sentences
  std::string likely{};      // may be empty
  std::string next{};
  std::vector<Call> calls{};  // of a disagreement: who called what
};

Verdict judge(const Evidence& evidence);

// "rank 1", "ranks 0, 2".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace lockstep
