// Checks that all ranks are about to do the same: each describes its part in a
// text, one item per line, and the ranks compare the texts.
//
// Threads: called by every rank of the group, like the collectives inside.
// Errors:  Mismatch on every rank where texts differ; those of ProcessGroup's
//          operations.
#pragma once

#include <string>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// The rest of the error text after "the ranks of group …".
struct TextDifference {
  std::string what;
  std::string likely;
  std::string next;
};

// Compares hashes, 16 bytes per rank; ranks exchange texts only where hashes
// differ, to name the first line that differs. A group of one always agrees.
void check_same_text(ProcessGroup& group, const std::string& text,
                     const TextDifference& difference);

}  // namespace lockstep
