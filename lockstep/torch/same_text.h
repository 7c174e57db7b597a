// Whether all ranks are about to do the same: each describes in a text, a line
// a thing, what it does, and the texts are compared.
//
// Threads: called by every rank of the group, like the collectives inside.
// Errors:  Mismatch on every rank where texts differ; what ProcessGroup's
//          operations throw.
#pragma once

#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// How the error goes on after "the ranks of group …".
struct TextDifference {
  std::string what;
  std::string likely;
  std::string next;
};

// Compares hashes, 16 bytes a rank; texts travel only where those differ, to
// name the first line in which two ranks do. A group of one agrees.
void check_same_text(ProcessGroup& group, const std::string& text,
                     const TextDifference& difference);

}  // namespace lockstep
