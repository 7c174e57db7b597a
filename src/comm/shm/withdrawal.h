// Takes a failing rank's memory back from its peers.
//
// A peer may be stopped while it reads or writes the buffers of the operation
// in flight, and continue at any later time. Its mapping cannot be revoked. The
// peer discards what it reads from now on, and the buffers that it may still
// write to become private memory of this process at the same addresses.
//
// Threads: the thread that advances operations.
// Errors:  SystemError when the kernel refuses the private memory, Timeout when
//          a thread of this process does not end its work: in both cases a peer
//          can still write to the operation's buffers.
#pragma once

#include "src/comm/shm/peer_status.h"
#include "src/comm/shm/pending_collective.h"

namespace lockstep {

// When it returns, the caller may change all memory of its operations: of the
// oldest collective, `oldest` (null if no collective is in flight), of later
// ones, which no peer has seen, and of its messages.
void withdraw_memory(const ShmContext& context, const PeerStatus& peer_status,
                     const PendingCollective* oldest);

}  // namespace lockstep
