// Turns the signals that concern a launcher into bytes of a descriptor.
//
// From construction to destruction the calling thread, and the threads that it
// starts meanwhile, have them blocked: construct it before any other thread, or
// that thread takes the signals in its own way. A signal that was ignored
// before (nohup ignores SIGHUP) stays ignored.
//
// Threads: constructed, used and destroyed by one.
// Errors:  SystemError.
#pragma once

#include <csignal>
#include <vector>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class SignalWatch {
 public:
  // SIGINT, SIGTERM, SIGHUP, SIGTSTP and SIGUSR1; SIGCHLD and SIGWINCH. SIGPIPE
  // is blocked as well, so that writing to a closed pipe is an error only.
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when a signal has come.
  int descriptor() const { return descriptor_.get(); }

  // The signals that have come, each once. Does not wait.
  std::vector<int> take();

  // What was blocked before: the mask for the processes that are started.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  FileDescriptor descriptor_;
  sigset_t original_mask_{};
  struct sigaction original_child_action_ {};
};

}  // namespace lockstep
