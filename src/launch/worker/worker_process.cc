#include "src/launch/worker/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "lockstep/base/error.h"
#include "src/launch/worker/find_program.h"
#include "src/net/pipe.h"

namespace lockstep {
namespace {

// Everything that the child needs between fork and exec, prepared before the
// fork. The child may call only async-signal-safe functions, because other
// threads of this process may have held any lock at the fork.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const cpu_set_t* cores;  // null: all
  const sigset_t* signal_mask;
  std::array<int, 3> standard;  // to become 0, 1 and 2
  int progress;                 // stays open; -1: none
  int failure;                  // receives errno on failure
  int death_signal;
  pid_t parent;
};

bool set_up_child(const ChildPlan& plan) {
  // A session of its own has no controlling terminal: a program that opens
  // /dev/tty for keys gets an error, where a background process would be
  // stopped.
  if (::setsid() < 0) return false;
  if (::prctl(PR_SET_PDEATHSIG, plan.death_signal) != 0) return false;
  // The parent may have died before prctl() took effect.
  if (plan.death_signal != 0 && ::getppid() != plan.parent) ::_exit(1);
  for (int number = 0; number < 3; ++number)
    if (::dup2(plan.standard[static_cast<std::size_t>(number)], number) < 0)
      return false;
  if (plan.progress >= 0 && ::fcntl(plan.progress, F_SETFD, 0) != 0)
    return false;
  // Cores may have gone offline since they were counted; running on other cores
  // is not an error.
  if (plan.cores != nullptr)
    ::sched_setaffinity(0, sizeof *plan.cores, plan.cores);
  return ::sigprocmask(SIG_SETMASK, plan.signal_mask, nullptr) == 0;
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  if (set_up_child(plan))
    ::execve(plan.program, plan.arguments, plan.environment);
  const int error = errno;
  [[maybe_unused]] const auto written =
      ::write(plan.failure, &error, sizeof error);
  ::_exit(127);
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

cpu_set_t cpu_set_of(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  return set;
}

// errno from the child, or 0 once it executes its program (which closes the
// pipe).
int read_failure(const FileDescriptor& pipe) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(pipe.get(), &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(sizeof error) ? error : 0;
}

// A pseudo-terminal as a pipe: the worker writes to the terminal end, and bytes
// arrive unchanged. A program that reads its output for keys gets EBADF,
// because it would wait forever. Empty when the system has no more
// pseudo-terminals.
std::optional<Pipe> make_terminal(const winsize& window) {
  FileDescriptor ours(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 64> name{};
  if (!ours || ::grantpt(ours.get()) != 0 || ::unlockpt(ours.get()) != 0 ||
      ::ptsname_r(ours.get(), name.data(), name.size()) != 0)
    return {};
  FileDescriptor terminal(::open(name.data(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  termios mode{};
  if (!terminal || ::tcgetattr(terminal.get(), &mode) != 0) return {};
  ::cfmakeraw(&mode);
  if (::tcsetattr(terminal.get(), TCSANOW, &mode) != 0 ||
      ::ioctl(terminal.get(), TIOCSWINSZ, &window) != 0)
    return {};
  return Pipe{std::move(ours), std::move(terminal)};
}

Pipe make_channel(const std::optional<winsize>& window) {
  std::optional<Pipe> terminal;
  if (window) terminal = make_terminal(*window);
  return terminal ? std::move(*terminal) : make_pipe();
}

}  // namespace

WorkerProcess::WorkerProcess(WorkerCommand command, ProgressPipe wanted) {
  Pipe records;
  if (wanted == ProgressPipe::kOpen) {
    records = make_pipe();
    make_nonblocking(records.read);
    command.environment.push_back(
        fmt::format("LOCKSTEP_PROGRESS_FD={}", records.write.get()));
  }
  progress = std::move(records.read);
  start(command, records.write.get());
}

void WorkerProcess::start(const WorkerCommand& command, int progress_end) {
  Pipe out = make_channel(command.output_window);
  Pipe err = make_channel(command.error_window);
  Pipe failure = make_pipe();
  FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) throw SystemError("could not open /dev/null", errno);
  auto arguments = command.arguments;
  auto environment = command.environment;
  const auto argument_pointers = pointers_to(arguments);
  const auto environment_pointers = pointers_to(environment);
  const cpu_set_t cores = cpu_set_of(command.cores);
  const int input = command.standard_input;
  const ChildPlan plan{.program = command.program.c_str(),
                       .arguments = argument_pointers.data(),
                       .environment = environment_pointers.data(),
                       .cores = command.cores.empty() ? nullptr : &cores,
                       .signal_mask = &command.signal_mask,
                       .standard = {input >= 0 ? input : nothing.get(),
                                    out.write.get(), err.write.get()},
                       .progress = progress_end,
                       .failure = failure.write.get(),
                       .death_signal = command.death_signal,
                       .parent = ::getpid()};

  pid_ = ::fork();
  if (pid_ == 0) run_child(plan);
  if (pid_ < 0) throw SystemError("could not start a process", errno);
  failure.write.reset();
  try {
    const int error = read_failure(failure.read);
    if (error != 0) throw CannotExecute(command.program, error);
    end_.emplace(pid_);
  } catch (...) {
    ::kill(pid_, SIGKILL);
    reap();
    throw;
  }
  standard_output = std::move(out.read);
  standard_error = std::move(err.read);
  make_nonblocking(standard_output);
  make_nonblocking(standard_error);
}

WorkerProcess::~WorkerProcess() {
  signal_group(SIGKILL);
  reap();
}

std::optional<ExitStatus> WorkerProcess::exit_status() {
  if (status_) return status_;
  siginfo_t info{};
  const int result = reaped_ ? -1
                             : ::waitid(P_PID, static_cast<id_t>(pid_), &info,
                                        WEXITED | WNOHANG | WNOWAIT);
  if (result != 0) {
    // Another part of the process reaped it; its exit status is lost.
    reaped_ = true;
    status_ = ExitStatus{.code = 1};
  } else if (info.si_pid != 0) {
    status_ = info.si_code == CLD_EXITED ? ExitStatus{.code = info.si_status}
                                         : ExitStatus{.signal = info.si_status};
  }
  return status_;
}

bool WorkerProcess::is_stopped() const noexcept {
  siginfo_t info{};
  return !reaped_ &&
         ::waitid(P_PID, static_cast<id_t>(pid_), &info,
                  WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

void WorkerProcess::resize(const std::optional<winsize>& output,
                           const std::optional<winsize>& error) const noexcept {
  // The call fails for pipes, which have no size.
  const auto set = [](const FileDescriptor& end,
                      const std::optional<winsize>& window) {
    return window && ::ioctl(end.get(), TIOCSWINSZ, &*window) == 0;
  };
  const bool output_has_changed = set(standard_output, output);
  const bool error_has_changed = set(standard_error, error);
  // The kernel signals the processes whose controlling terminal it is: none.
  if (output_has_changed || error_has_changed) signal_group(SIGWINCH);
}

void WorkerProcess::signal_group(int signal) const noexcept {
  if (!reaped_) ::kill(-pid_, signal);
}

void WorkerProcess::reap() noexcept {
  if (std::exchange(reaped_, true)) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep
