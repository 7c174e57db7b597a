// Wakes a thread that waits in poll(2).
//
// Threads: signal() from any thread; the rest from the waiting thread.
// Errors:  SystemError when the process is out of file descriptors.
#pragma once

#include "src/net/file_descriptor.h"

namespace lockstep {

class WakeUp {
 public:
  WakeUp();

  // Makes descriptor() readable until the next reset().
  void signal() noexcept;
  void reset() noexcept;

  // Readable once signalled; owned by this object.
  int descriptor() const { return event_.get(); }

 private:
  FileDescriptor event_;
};

}  // namespace lockstep
