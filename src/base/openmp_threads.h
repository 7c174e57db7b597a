// Sets the threads of the calling thread's next parallel regions of OpenMP;
// does nothing in a program without OpenMP.
#pragma once

#include <dlfcn.h>

namespace lockstep {

inline void set_openmp_threads(int count) {
  using SetThreads = void (*)(int);
  const auto set = reinterpret_cast<SetThreads>(
      ::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(count);
}

}  // namespace lockstep
