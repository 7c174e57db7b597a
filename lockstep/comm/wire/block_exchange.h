// Operations in which what one rank brings for another arrives in its memory
// unchanged: gather, scatter, all_gather, all_to_all and their uneven forms.
//
// Long stretches go from place to place in messages of a few MiB; short ones
// are packed together. Several messages to and from each rank are in flight.
//
// Threads: whoever carries out the group's collective.
// Errors:  WireCore's waits.
#pragma once

#include "lockstep/comm/routes.h"
#include "lockstep/comm/wire/wire_core.h"

namespace lockstep {

// Moves what `routes` says between this rank and all others. `tag` is free for
// the operation's messages.
void exchange_blocks(WireCore& core, const Routes& routes, int tag,
                     Deadline deadline);

// The same for what the rank brings for itself.
void copy_own_block(const Routes& routes);

}  // namespace lockstep
