// Operations in which one rank's elements arrive in another rank's memory
// unchanged: gather, scatter, all_gather, all_to_all and their uneven forms.
//
// Long stretches are moved without a copy in messages of a few MiB; short ones
// are packed together. Several messages to and from each rank are in flight.
//
// Threads: the thread that carries out the group's collective.
// Errors:  those of WireCore's waits.
#pragma once

#include "src/comm/operation/routes.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

// Moves the elements of `routes` between this rank and all others. `tag` is
// reserved for the operation's messages.
void exchange_blocks(WireCore& core, const Routes& routes, int tag,
                     Deadline deadline);

// The same for this rank's elements for itself.
void copy_own_block(const Routes& routes);

}  // namespace lockstep
