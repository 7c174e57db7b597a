// How a process ended.
#pragma once

#include <string>

namespace lockstep {

struct ExitStatus {
  int code = 0;    // the exit code, if no signal ended it
  int signal = 0;  // the signal that ended it, or 0

  // Converts a status from waitpid().
  static ExitStatus of_wait(int status);

  bool ended_well() const { return code == 0 && signal == 0; }
  // As in a shell: the code, or 128 + the signal's number.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

// "was killed by signal 9 (SIGKILL)" or "exited with code 3".
std::string describe(const ExitStatus& status);

}  // namespace lockstep
