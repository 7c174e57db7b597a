// Sockets that a forked child does not keep.
//
// A connection ends, for the other side, when the last process that has it open
// closes it. A child that was forked, a data worker for example, would thus
// hide the death of its parent for as long as it lives. So in a child each of
// these sockets, and every copy of it, becomes /dev/null: its number stays
// taken, and what still uses it gets an error. The parent keeps it as it was.
//
// Threads: any.
// Errors:  none: a socket that cannot be remembered is kept by children.
#pragma once

namespace lockstep {

// From now on `socket` is not kept by children; after it has been closed this
// means no other.
void keep_from_children(int socket) noexcept;

}  // namespace lockstep
