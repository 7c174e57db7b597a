// Whether another process is alive, told by the kernel: a pidfd.
//
// A process opens one on itself and passes it to its peers; it keeps working
// across users and pid namespaces, and a reused pid cannot deceive it.
//
// Threads: one object, one thread at a time.
// Errors:  SystemError where the kernel has no pidfds (Linux before 5.3), or no
//          such process.
#pragma once

#include <sys/types.h>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// A child's number is safe to use until it has been waited for; that of any
// other process may be another's by now.
FileDescriptor open_process(pid_t pid);

FileDescriptor open_own_process();

// Whether the process behind a pidfd has ended. Never blocks.
bool has_exited(const FileDescriptor& process);

}  // namespace lockstep
