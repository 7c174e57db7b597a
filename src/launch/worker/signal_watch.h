// Delivers a launcher's signals through a descriptor.
//
// From construction to destruction the signals are blocked in the calling
// thread and in the threads that it starts meanwhile. Construct the watch
// before any other thread starts; otherwise that thread receives the signals. A
// signal that was ignored before (nohup ignores SIGHUP) stays ignored.
//
// Threads: one thread constructs, uses and destroys it.
// Errors:  SystemError.
#pragma once

#include <csignal>
#include <vector>

#include "src/net/file_descriptor.h"

namespace lockstep {

// Whether a user, or a system that shuts down, asks by `signal` for the end.
bool asks_to_end(int signal);
// Whether such a signal comes from a user's terminal: a second one kills. Other
// programs repeat SIGTERM, and their second one changes nothing.
bool is_from_terminal(int signal);

class SignalWatch {
 public:
  // SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP and SIGUSR1; SIGCHLD and
  // SIGWINCH. SIGPIPE and SIGXFSZ are blocked too, so that a write to a closed
  // pipe or beyond a limit on files' sizes only returns an error.
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when a signal has arrived.
  int descriptor() const { return descriptor_.get(); }

  // The signals that have arrived, each once. Does not wait.
  std::vector<int> take();

  // The signal mask from before: the mask for started processes.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  FileDescriptor descriptor_;
  sigset_t original_mask_{};
  struct sigaction original_child_action_ {};
};

}  // namespace lockstep
