// Lets only one writer use a folder at a time.
//
// The lock is flock(2) on the file `.lock` in the folder: the kernel releases
// it when the process ends in any way, so nothing needs cleaning up. But a
// process that was forked from the owner without exec and outlives it keeps
// holding the lock, and a file server holds the lock of a crashed host until it
// considers the host dead. The file stays, and names the last owner. Where the
// file system does not support locks, FolderLock logs a warning and does not
// lock.
//
// Threads: an object belongs to one thread; two objects of one process exclude
//          each other too.
// Errors:  InvalidArgument naming the process that holds the lock; SystemError
//          where the file cannot be created or locked.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <utility>

#include "lockstep/base/deadline.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

class FolderLock {
 public:
  // `folder` must exist. A killed process may need a moment to exit: the
  // constructor waits for it until `deadline`.
  FolderLock(const std::filesystem::path& folder, Deadline deadline);

  // Releases the lock, also where a fork of this process outlives it; in such a
  // fork it does not.
  ~FolderLock();
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(owner_, other.owner_);
    return *this;
  }

  // Whether it locks the present `folder`: false if that was deleted since,
  // even if it was created again.
  bool is_of(const std::filesystem::path& folder) const;

 private:
  FileDescriptor file_;
  pid_t owner_;  // differs in a fork
};

}  // namespace lockstep
