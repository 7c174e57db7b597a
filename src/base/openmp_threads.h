// The threads of the calling thread's next parallel regions of OpenMP, and of
// MKL. They do nothing in a program without these libraries.
#pragma once

#include <dlfcn.h>

namespace lockstep {

inline void set_threads_by(const char* function, int count) {
  using SetThreads = void (*)(int);
  const auto set =
      reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, function));
  if (set != nullptr) set(count);
}

inline void set_openmp_threads(int count) {
  set_threads_by("omp_set_num_threads", count);
}

// MKL's own number, which comes before OpenMP's.
inline void set_mkl_threads(int count) {
  set_threads_by("MKL_Set_Num_Threads_Local", count);
}

}  // namespace lockstep
