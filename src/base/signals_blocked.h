// Blocks signals in the threads that start while it lives: the program's
// handlers expect to run on the program's own threads.
//
// It is header-only, because plug-ins use it too.
//
// Threads: the thread that made it.
// Errors:  none.
#pragma once

#include <signal.h>

namespace lockstep {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace lockstep
