// The main() of golden programs whose ranks are threads:
//
//   PROGRAM RANKS DIRECTORY JOB…
//
// Threads: main() calls it once.
#pragma once

#include <ATen/Parallel.h>

#include <cstdio>
#include <exception>
#include <string>

namespace lockstep {

// Runs each job on RANKS ranks, with files in DIRECTORY. Returns the exit code.
template <class RunJob>
int golden_main(int argc, char** argv, const RunJob& run_job) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s RANKS DIRECTORY JOB...\n", argv[0]);
    return 2;
  }
  try {
    at::set_num_threads(1);
    for (int i = 3; i < argc; ++i)
      run_job(argv[i], std::stoi(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace lockstep
