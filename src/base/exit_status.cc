#include "src/base/exit_status.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstring>

namespace lockstep {

ExitStatus ExitStatus::of_wait(int status) {
  if (WIFSIGNALED(status)) return {.signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

std::string describe(const ExitStatus& status) {
  if (status.signal == 0)
    return fmt::format("exited with code {}", status.code);
  const char* name = ::sigabbrev_np(status.signal);
  if (name == nullptr)
    return fmt::format("was killed by signal {}", status.signal);
  return fmt::format("was killed by signal {} (SIG{})", status.signal, name);
}

}  // namespace lockstep
