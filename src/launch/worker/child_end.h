// A descriptor that becomes readable when a child process ends: a pidfd or,
// where the kernel has no pidfds (Linux before 5.3) or a container refuses
// them, a pipe that a thread closes when the child has ended.
//
// Threads: one thread at a time per object.
// Errors:  SystemError.
#pragma once

#include <sys/types.h>

#include <thread>

#include "src/net/file_descriptor.h"

namespace lockstep {

class ChildEnd {
 public:
  // `child` must not have been reaped.
  explicit ChildEnd(pid_t child);
  // Waits for the child's end if a thread watches it. Does not reap the child.
  ~ChildEnd();
  ChildEnd(const ChildEnd&) = delete;
  ChildEnd& operator=(const ChildEnd&) = delete;

  // Readable once the child has ended.
  int descriptor() const { return end_.get(); }

 private:
  FileDescriptor end_;
  std::thread watch_;
};

}  // namespace lockstep
