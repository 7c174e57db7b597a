// Tells whether another process is alive, by a pidfd.
//
// A process opens a pidfd on itself and passes it to its peers. The pidfd works
// across users and pid namespaces, and a reused pid cannot deceive it. Where
// the kernel has no pidfds (Linux before 5.3) or a container refuses them, the
// process passes the read end of a pipe and keeps the write end until it exits.
// A forked child closes the write end; a child made by a bare clone(2) does
// not, and hides its parent's exit while it lives.
//
// Threads: one thread at a time per object.
// Errors:  SystemError when the kernel refuses a call.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>

#include "src/base/exit_status.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

// A child's pid is safe to use until the parent reaps it; the pid of any other
// process may have been reused. SystemError without pidfds.
FileDescriptor open_process(pid_t pid);

// Whether this error of open_process() means that pidfds are unavailable:
// kernels and seccomp filters return it for an unknown system call.
bool means_no_pidfds(int error_number);

// A handle on this process: a pidfd or the pipe's read end.
FileDescriptor open_own_process();

// `process`, or a handle on the same process that this one holds already. Any
// thread.
std::shared_ptr<const FileDescriptor> shared_handle(FileDescriptor process);

// Whether the process behind a handle has ended. Never blocks.
bool has_exited(const FileDescriptor& process);

// How the process behind a handle ended. The kernel tells it for a process in
// this pid namespace that its parent has not reaped and, since Linux 6.15, for
// every process with a pidfd; otherwise the result is empty, as it is while the
// process runs. Never blocks.
std::optional<ExitStatus> exit_status_of(const FileDescriptor& process);

}  // namespace lockstep
