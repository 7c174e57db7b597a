// A folder that only one writer has at a time.
//
// The lock is flock(2)'s on the file `.lock` in the folder: the kernel lets go
// of it when the process ends, however it ends, so that nothing is left to be
// cleaned up. The file stays, and names who had the lock last. Where the file
// system knows no locks there are none, with a warning.
//
// Threads: an object belongs to one thread; two of one process exclude each
//          other too.
// Errors:  InvalidArgument naming the process that has the folder; SystemError
//          where the file cannot be made.
#pragma once

#include <filesystem>

#include "lockstep/base/deadline.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class FolderLock {
 public:
  // Of a folder that is there. A process that was killed may take a moment to
  // be gone: until `deadline` it is waited for.
  FolderLock(const std::filesystem::path& folder, Deadline deadline);

 private:
  FileDescriptor file_;
};

}  // namespace lockstep
