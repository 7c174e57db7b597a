// The exit codes of the commands and of the programs that they start.
#pragma once

namespace lockstep {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
// The program has saved its state and can be started again: EX_TEMPFAIL.
inline constexpr int kExitStartAgain = 75;

}  // namespace lockstep
