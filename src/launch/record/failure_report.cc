#include "src/launch/record/failure_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <string>
#include <string_view>

#include "src/base/exit_codes.h"
#include "src/base/first_line.h"
#include "src/base/printable.h"

namespace lockstep {
namespace {

// Who sends SIGKILL: the kernel where its counter has risen.
std::string cause_of_kill(const std::optional<OomKills>& oom_kills) {
  if (!oom_kills)
    return "another process killed it, or the kernel did because memory ran "
           "out (then dmesg says \"Out of memory\")";
  if (oom_kills->count == 0)
    return "another process killed it; the kernel killed none for want of "
           "memory";
  const std::string killed = fmt::format("{} process{}", oom_kills->count,
                                         oom_kills->count == 1 ? "" : "es");
  if (oom_kills->of == OomKills::Of::kHost)
    return fmt::format(
        "the kernel may have killed it because memory ran out, as it killed {} "
        "of this host since the job began (dmesg names them), or another "
        "process killed it",
        killed);
  return fmt::format(
      "the kernel killed it because memory ran out ({} of this control group "
      "since the job began): use fewer ranks or smaller batches, or give the "
      "job more memory",
      killed);
}

// Workers have the launcher's limits.
std::string cause_of_invalid_access() {
  constexpr rlim_t kSmall = rlim_t{1} << 20U;
  constexpr std::string_view kUsual =
      "a bug in the program: it accessed invalid memory";
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kSmall)
    return std::string(kUsual);
  return fmt::format(
      "its stack may be full, because it is limited to {} KiB (ulimit -s, "
      "usually 8192): raise the limit; or {}",
      stack.rlim_cur / 1024, kUsual);
}

std::string last_lines(const WorkerFailure& failure) {
  if (failure.last_lines.empty()) return "\n  output:  it wrote nothing";
  if (failure.lines_in_sight) return "";
  std::string text =
      fmt::format("\n  output:  its last {}",
                  failure.last_lines.size() == 1
                      ? std::string("line")
                      : fmt::format("{} lines", failure.last_lines.size()));
  for (const std::string& line : failure.last_lines) text += "\n    " + line;
  return text;
}

std::string where_output_is(const WorkerFailure& failure) {
  if (!failure.log_path.empty())
    return fmt::format("its whole output is in {}", failure.log_path);
  return "--log-dir DIR keeps each rank's whole output";
}

std::string next_step(const WorkerFailure& failure) {
  if (!failure.record_folder.empty())
    return fmt::format("lockstep blame {}\n           {}",
                       failure.record_folder, where_output_is(failure));
  return where_output_is(failure);
}

}  // namespace

std::string likely_cause(const WorkerFailure& failure) {
  const ExitStatus& status = failure.status;
  if (status.signal == 0 && status.code == kExitStartAgain)
    return "it was asked to stop and has saved its state: start the job again";
  if (failure.exception && status.signal == 0)
    return "it raised " + printable(first_line(failure.exception->message));
  switch (status.signal) {
    case SIGKILL:
      return cause_of_kill(failure.oom_kills);
    case SIGSEGV:
      return cause_of_invalid_access();
    case SIGBUS:
      return "it accessed memory of a file that has become shorter or cannot "
             "grow: /dev/shm may be full (df /dev/shm), or another program has "
             "replaced a file that was mapped";
    case SIGFPE:
      return "a bug in the program: it divided an integer by zero";
    case SIGILL:
      return "it has an instruction that this processor lacks: build it for "
             "this machine (-march), or install a library that was";
    case SIGABRT:
      return "the program aborted: an uncaught exception or a failed check";
    default:
      return "";
  }
}

std::string summary_of(const WorkerFailure& failure) {
  return fmt::format("rank {} {}", failure.rank, describe(failure.status));
}

std::string describe(const WorkerFailure& failure) {
  std::string text =
      fmt::format("lockstep: rank {} of {} {} after {:.1f} s{}", failure.rank,
                  failure.workers, describe(failure.status), failure.seconds,
                  failure.workers > 1 ? "; the other ranks were ended" : "");
  text +=
      fmt::format("\n  program: {} (process {})", failure.program, failure.pid);
  text += last_lines(failure);
  const std::string cause = likely_cause(failure);
  if (!cause.empty()) text += "\n  likely:  " + cause;
  return text + "\n  next:    " + next_step(failure);
}

}  // namespace lockstep
