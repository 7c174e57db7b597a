// Something that one rank does for all, such as writing a file, or that each
// does and that is of use only when all can: what becomes of it, every rank
// learns.
//
// Threads: a collective: every rank of the group calls it.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Runs `action` on rank 0 while the other ranks wait for it, as long as a
// collective of the group may take. When it throws, so does every rank: rank 0
// what `action` threw, the others an Error that quotes it. `place` names the
// action in messages: "saving the model".
void run_on_rank_zero(ProcessGroup& group, std::string_view place,
                      const std::function<void()>& action);

// Runs `action`, in which no rank may wait for another, on every rank. When it
// throws on some, every rank throws once all have run it: those ranks what
// their own `action` threw, the others an Error that quotes the first of them.
void run_on_all_ranks(ProcessGroup& group, std::string_view place,
                      const std::function<void()>& action);

}  // namespace lockstep
