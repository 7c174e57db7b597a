// One worker: a process of ours that can be watched, ended and accounted for.
//
// It leads a process group of its own, so that what it starts can be ended with
// it, and the kernel kills it when the process that started it dies. It stays
// in the process table until reap(), so that its number, and that of its group,
// cannot come to mean another process.
//
// Threads: one at a time; must be started by a thread that lives as long as the
//          worker should (the kernel's signal on death is tied to it).
// Errors:  CannotExecute when the program cannot be executed, SystemError when
//          the system refuses processes or pipes.
#pragma once

#include <sys/ioctl.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/exit_status.h"
#include "lockstep/launch/child_end.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// What to start.
struct WorkerCommand {
  std::string program;                   // a file, not searched for
  std::vector<std::string> arguments;    // the program's name comes first
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cores{};              // where it may run; none: anywhere
  int standard_input = -1;               // lent; negative: it reads nothing
  sigset_t signal_mask{};                // the signals that it has blocked
  // The windows of the pseudo-terminals that its output and errors go to, as
  // programs buffer whole blocks of what they write to pipes; none: a pipe.
  std::optional<winsize> output_window{};
  std::optional<winsize> error_window{};
};

// Whether a worker gets a pipe for progress records (docs/formats/progress.md).
enum class ProgressPipe { kNone, kOpen };

class WorkerProcess {
 public:
  WorkerProcess(WorkerCommand command, ProgressPipe progress);
  // Kills and reaps what is left.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int end() const { return end_->descriptor(); }

  // The ends from which its output is read; they do not block. Close at end of
  // file. Without a progress pipe, `progress` is empty.
  FileDescriptor standard_output;
  FileDescriptor standard_error;
  FileDescriptor progress;

  // How it ended; nothing while it runs. Does not wait.
  std::optional<ExitStatus> exit_status();

  // The same, of one that is known to have ended.
  const ExitStatus& last_status() const { return status_.value(); }

  // Sets the sizes of its pseudo-terminals, where it has them.
  void resize(const std::optional<winsize>& output,
              const std::optional<winsize>& error) const noexcept;

  // Signals the whole process group, whether or not its leader has ended.
  void signal_group(int signal) const noexcept;

  // Lets go of its entry in the process table. It must have ended. After this
  // signal_group() does nothing.
  void reap() noexcept;

 private:
  void start(const WorkerCommand& command, int progress_end);

  pid_t pid_ = -1;
  std::optional<ChildEnd> end_;
  std::optional<ExitStatus> status_;
  bool reaped_ = false;
};

}  // namespace lockstep
