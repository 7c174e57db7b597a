// Sockets that a forked child does not keep.
//
// The other side sees a connection end when the last process that has it open
// closes it. A forked child, for example a data worker, would hide the death of
// its parent as long as the child lives. So in a child each of these sockets,
// and every copy of it, becomes /dev/null: its number stays taken, and code
// that still uses it gets an error. The parent's socket does not change.
//
// Threads: any thread.
// Errors:  those of `open`; when a socket cannot be registered, children keep
//          it.
#pragma once

#include <functional>

#include "src/net/file_descriptor.h"

namespace lockstep {

// Returns the socket that `open` returns, which may be none. No child keeps it:
// no fork() comes between `open` and the registration. Closing the socket ends
// the registration. `open` must not wait, and leaves its errno.
FileDescriptor keep_from_children(const std::function<FileDescriptor()>& open);

}  // namespace lockstep
