// Sockets that a forked child does not keep.
//
// The other side sees a connection end when the last process that has it open
// closes it. A forked child, for example a data worker, would hide the death of
// its parent as long as the child lives. So in a child each of these sockets,
// and every copy of it, becomes /dev/null: its number stays taken, and code
// that still uses it gets an error. The parent's socket does not change.
//
// Threads: any thread.
// Errors:  none; when a socket cannot be registered, children keep it.
#pragma once

namespace lockstep {

// Children that are forked from now on do not keep `socket`. Closing the socket
// ends the registration.
void keep_from_children(int socket) noexcept;

}  // namespace lockstep
