// Whether another process is alive, told by the kernel: a pidfd.
//
// A process opens one on itself and passes it to its peers; it keeps working
// across users and pid namespaces, and a reused pid cannot deceive it. Where
// the kernel has no pidfds (Linux before 5.3) or a container refuses them, the
// read end of a pipe takes its place, whose write end the process keeps until
// it ends. A forked child closes that; one made by a bare clone(2) does not,
// and hides its parent's end while it lives.
//
// Threads: one object, one thread at a time.
// Errors:  SystemError for what the kernel refuses.
#pragma once

#include <sys/types.h>

#include <optional>

#include "lockstep/base/exit_status.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// A child's number is safe to use until it has been waited for; that of any
// other process may be another's by now. SystemError without pidfds.
FileDescriptor open_process(pid_t pid);

// Whether this error of open_process() means that there are no pidfds: what
// kernels and filters answer to a call that they do not know.
bool means_no_pidfds(int error_number);

// A handle on this process: a pidfd or such a pipe.
FileDescriptor open_own_process();

// Whether the process behind a handle has ended. Never blocks.
bool has_exited(const FileDescriptor& process);

// How the process behind a handle has ended, where the kernel tells: of a
// process in this pid namespace that its parent has not reaped, and of any with
// a pidfd since Linux 6.15. Empty while it runs. Never blocks.
std::optional<ExitStatus> exit_status_of(const FileDescriptor& process);

}  // namespace lockstep
