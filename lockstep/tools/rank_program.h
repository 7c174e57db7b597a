// The main() of a program that is one rank of a command: lockstep-train and its
// like. The launcher starts it with the flags that the user gave to the
// command; started alone, it is the one rank of a world of one.
//
// Threads: main, before any other exists.
// Errors:  none thrown: what goes wrong is said on standard error, with the
//          program's name and, of several, the rank; by one rank where the
//          launcher is ours and all would say the same.
#pragma once

#include <functional>
#include <span>

#include "lockstep/base/settings.h"
#include "lockstep/tools/rank_place.h"

namespace lockstep {

inline constexpr int kFailed = 1;
inline constexpr int kUsageError = 2;

struct RankProgram {
  const char* name = "";  // "lockstep-train"
  // The library that it computes with, and its version: "LibTorch 2.13.0".
  const char* library = "";
  // Makes the program's job from its flags: `arguments` are those after its
  // name.
  std::function<std::function<void()>(std::span<const char* const> arguments,
                                      const Settings&, const RankPlace&)>
      prepare{};
  // The exit code where the job itself refuses something.
  int refused = kFailed;
};

// Does it with main()'s arguments; of --version alone, prints what program this
// is. Returns the exit code: 0, kUsageError for
// flags and environment variables that cannot work, kFailed for all else.
int run_rank_program(const RankProgram& program, int count,
                     const char* const* arguments);

}  // namespace lockstep
