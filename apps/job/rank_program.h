// The main() of a program that is one rank of a command, such as
// lockstep-train. The launcher starts it with the flags that the user gave to
// the command; started alone, it is the only rank of a world of size 1.
//
// Threads: the main thread, before any other thread starts.
// Errors:  none thrown. The program reports an error on standard error with its
//          name and, among several ranks, the rank. Under our launcher only one
//          rank reports an error that all ranks share.
#pragma once

#include <functional>
#include <span>

#include "apps/job/rank_place.h"
#include "src/base/exit_codes.h"
#include "src/base/settings.h"

namespace lockstep {

struct RankProgram {
  // Returns the exit code.
  using Job = std::function<int()>;

  const char* name = "";  // "lockstep-train"
  // The compute library and its version: "LibTorch 2.13.0".
  const char* library = "";
  // Creates the program's job from its flags; `arguments` are those after its
  // name.
  std::function<Job(std::span<const char* const> arguments, const Settings&,
                    const RankPlace&)>
      prepare{};
  // The exit code when the job itself refuses its input.
  int refused = kExitFailed;
};

// A program's `prepare`: `parse` reads its flags, and `run` is its job.
template <class Parse, class Run>
auto prepare_by(Parse parse, Run run) {
  return [=](std::span<const char* const> arguments, const Settings& settings,
             const RankPlace& place) -> RankProgram::Job {
    return [run, settings, options = parse(arguments, place)] {
      return run(options, settings);
    };
  };
}

// Runs the program with main()'s arguments; with only --version, prints the
// program's version. Returns the exit code: the job's, kExitUsage for invalid
// flags and environment variables and for flags that differ between ranks,
// kExitFailed for all other errors.
int run_rank_program(const RankProgram& program, int count,
                     const char* const* arguments);

}  // namespace lockstep
