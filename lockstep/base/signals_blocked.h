// Keeps the program's signals away from the threads that are started while it
// lives: a handler expects one of the program's own.
//
// It is all in this header, because plug-ins use it too.
//
// Threads: one object, the thread that made it.
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
