// Calls of a C library that reports errors by a function which must not return,
// as libjpeg and libpng do.
//
// An exception must not pass through the library's frames, which need not be
// compiled for it, and a jump must not pass over objects with destructors. So
// the error function jumps to here, over the library's frames and the caller's
// step alone, and the caller throws afterwards.
//
// Threads: an object belongs to one thread.
#pragma once

#include <csetjmp>

namespace lockstep {

class LibraryCall {
 public:
  // Runs `step`; false when fail() ended it. `step` calls the library only, and
  // holds nothing that has a destructor.
  template <class Step>
  [[gnu::noinline]] bool succeeds(const Step& step) {
    if (setjmp(end_) != 0) return false;
    step();
    return true;
  }

  // For the library's error function, during a step.
  [[noreturn]] void fail() { std::longjmp(end_, 1); }

 private:
  std::jmp_buf end_{};
};

}  // namespace lockstep
