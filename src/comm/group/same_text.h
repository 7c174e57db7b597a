// Checks that all ranks are about to do the same: each describes its part in a
// text, one item per line, and the ranks compare the texts.
//
// Threads: called by every rank of the group, like the collectives inside.
// Errors:  Mismatch on every rank where texts differ; those of ProcessGroup's
//          operations.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The rest of the error text after "the ranks of group …".
struct TextDifference {
  std::string what;
  std::string likely;
  std::string next;
};

// All ranks' texts, by rank, if they differ; nothing if they are equal, as
// those of a group of one always are. Ranks compare hashes, 16 bytes per rank,
// and exchange texts, which hold no zero, only where hashes differ.
std::vector<std::string> texts_if_different(ProcessGroup& group,
                                            const std::string& text);

// Names the first line that differs.
void check_same_text(ProcessGroup& group, const std::string& text,
                     const TextDifference& difference);

}  // namespace lockstep
