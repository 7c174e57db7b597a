// One worker process, which the launcher can watch, signal and reap.
//
// It leads its own session and process group, so a signal to the group also
// reaches the processes that it starts. The kernel signals it when the launcher
// dies. It stays in the process table until reap(), so its pid and its group's
// id cannot be reused.
//
// Threads: one thread at a time. The starting thread must live as long as the
//          worker (the kernel's parent-death signal is tied to that thread).
// Errors:  CannotExecute when the program cannot be executed, SystemError when
//          the system refuses processes or pipes.
#pragma once

#include <sys/ioctl.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "src/base/exit_status.h"
#include "src/launch/worker/child_end.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

// What to start.
struct WorkerCommand {
  std::string program;                   // a path; PATH is not searched
  std::vector<std::string> arguments;    // starting with the program's name
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cores{};              // allowed cores; empty: all
  int standard_input = -1;               // borrowed; negative: none
  sigset_t signal_mask{};                // its blocked signals
  // What it gets when the launcher dies; 0: nothing.
  int death_signal = SIGKILL;
  // The window sizes of the pseudo-terminals for its output and errors, because
  // programs buffer whole blocks on pipes. Nothing: a pipe.
  std::optional<winsize> output_window{};
  std::optional<winsize> error_window{};
};

// Whether a worker gets a pipe for progress records (docs/formats/progress.md).
enum class ProgressPipe { kNone, kOpen };

class WorkerProcess {
 public:
  WorkerProcess(WorkerCommand command, ProgressPipe progress);
  // Kills and reaps the process if it still exists.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int end() const { return end_->descriptor(); }

  // The non-blocking read ends of its output. The caller closes them at end of
  // file. Without a progress pipe, `progress` is empty.
  FileDescriptor standard_output;
  FileDescriptor standard_error;
  FileDescriptor progress;

  // How the process ended; nothing while it runs. Does not wait.
  std::optional<ExitStatus> exit_status();

  // How a process ended that is known to have ended.
  const ExitStatus& last_status() const { return status_.value(); }

  // Whether a signal has stopped the process (SIGSTOP, SIGTSTP).
  bool is_stopped() const noexcept;

  // Sets the sizes of its pseudo-terminals, if any, and sends SIGWINCH to the
  // process group.
  void resize(const std::optional<winsize>& output,
              const std::optional<winsize>& error) const noexcept;

  // Signals the whole process group, whether or not its leader has ended.
  void signal_group(int signal) const noexcept;

  // Frees its entry in the process table. The process must have ended.
  // Afterwards signal_group() does nothing.
  void reap() noexcept;

 private:
  void start(const WorkerCommand& command, int progress_end);

  pid_t pid_ = -1;
  std::optional<ChildEnd> end_;
  std::optional<ExitStatus> status_;
  bool reaped_ = false;
};

}  // namespace lockstep
