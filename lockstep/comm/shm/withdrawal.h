// How a rank that gives up gets its memory back from its peers.
//
// A peer may be stopped in the middle of reading or writing the buffers of the
// operation in flight, and go on at any later time. Nothing takes its mapping
// away. What it reads from now on is discarded, and what it may still write to
// becomes private memory of this process at the same addresses.
//
// Threads: one thread at a time, the one that advances.
// Errors:  SystemError when the kernel refuses the private memory, Timeout when
//          a thread of this process does not end its work: in both cases peers
//          can still write to the operation's buffers.
#pragma once

#include "lockstep/comm/shm/departures.h"
#include "lockstep/comm/shm/flight.h"

namespace lockstep {

// When it returns, the caller may change all memory of its operations: of the
// oldest collective, `oldest` (null when no collective is in flight), of those
// behind it, which no peer has seen, and of its messages.
void withdraw_memory(const ShmContext& context, const Departures& departures,
                     const Flight* oldest);

}  // namespace lockstep
