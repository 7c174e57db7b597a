// A folder that only one writer has at a time.
//
// The lock is flock(2)'s on the file `.lock` in the folder: the kernel lets go
// of it when the process ends, however it ends, so that nothing is left to be
// cleaned up. But a process that was forked from it without exec and outlives
// it holds the lock on; and a server of files holds that of a host that crashed
// until it takes the host for gone. The file stays, and names who had the lock
// last. Where the file system knows no locks there are none, with a warning.
//
// Threads: an object belongs to one thread; two of one process exclude each
//          other too.
// Errors:  InvalidArgument naming the process that has the folder; SystemError
//          where the file cannot be made, or cannot be locked.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class FolderLock {
 public:
  // Of a folder that is there. A process that was killed may take a moment to
  // be gone: until `deadline` it is waited for.
  FolderLock(const std::filesystem::path& folder, Deadline deadline);

  // Ends the lock, also where a fork of this process outlives it; in such a
  // fork it does not.
  ~FolderLock();
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(owner_, other.owner_);
    return *this;
  }

  // Whether it is the lock of what `folder` is now: not where that was deleted
  // since, and perhaps made anew.
  bool is_of(const std::filesystem::path& folder) const;

 private:
  FileDescriptor file_;
  pid_t owner_;  // a fork has another
};

}  // namespace lockstep
