// Runs an action on one rank for all, such as writing a file, or an action on
// every rank that must succeed on all: every rank learns of a failure.
//
// Threads: a collective: every rank of the group calls it.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Runs `action` on rank 0 while the other ranks wait for it, at most the
// group's timeout. When it throws, every rank throws: rank 0 the same
// exception, the others an Error that quotes it. `label` names the action in
// messages: "saving the model".
void run_on_rank_zero(ProcessGroup& group, std::string_view label,
                      const std::function<void()>& action);

// Runs `action`, in which no rank may wait for another, on every rank. When it
// throws on some ranks, every rank throws once all have run it: those ranks
// their own exception, the others an Error that quotes the first of them.
void run_on_all_ranks(ProcessGroup& group, std::string_view label,
                      const std::function<void()>& action);

}  // namespace lockstep
