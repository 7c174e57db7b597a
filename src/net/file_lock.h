// The lock of flock(2), which excludes the other open files of all processes.
//
// It belongs to the open file: a forked child shares it, and the kernel
// releases it when the last copy of the descriptor is closed, so also when the
// processes that have one are killed.
//
// Threads: any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

enum class LockAttempt { kLocked, kInUse, kNoLocksHere };

// Tries to lock the file, without waiting. kNoLocksHere: its file system does
// not support locks. Any other refusal is a SystemError "cannot lock `name`".
LockAttempt try_to_lock(const FileDescriptor& file, const std::string& name);

// Tries until the deadline passes; kInUse then.
LockAttempt lock_until(Deadline deadline, const FileDescriptor& file,
                       const std::string& name);

// The process that holds the file's lock. Nothing when the lock is free or that
// process is on another host or in another container.
std::optional<pid_t> lock_holder(const FileDescriptor& file);

}  // namespace lockstep
