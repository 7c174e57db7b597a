// The built `lockstep`, started as a user starts it; the test reads its output.
//
// Every process that it starts inherits one end of a pipe. At the pipe's end of
// file no such process is left, also none that changed its process group.
//
// Threads: one thread at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/base/testing/test_directory.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

struct CommandResult {
  int exit_code = -1;  // 128 + the signal, when one killed it
  std::string out;
  std::string err;
};

// The kind of the command's standard output and error.
enum class Terminal { kNone, kPseudo };

class LaunchedCommand {
 public:
  // Long enough for a busy machine; no test should take this long.
  static Deadline timeout();

  // Starts `lockstep` with `arguments`; "NAME=value" in `environment` extends
  // the test's environment. On a pseudo terminal (90 columns, UTF-8) standard
  // output and error both go to `out`, and the terminal controls the command.
  explicit LaunchedCommand(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment = {},
                           Terminal terminal = Terminal::kNone);
  // Kills the remaining processes.
  ~LaunchedCommand();
  LaunchedCommand(const LaunchedCommand&) = delete;
  LaunchedCommand& operator=(const LaunchedCommand&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // Reads until `text` has appeared `times` times on either stream. Returns
  // false when the output ends first or timeout() passes.
  bool wait_for(const std::string& text, int times = 1);

  const std::string& output_so_far() const { return result_.out; }
  const std::string& errors_so_far() const { return result_.err; }

  // Waits for the command's end and returns its output. Call it once.
  CommandResult finish();

  // Waits until the command is stopped, as by SIGSTOP.
  bool wait_until_stopped() const;

  // Whether the command or a process that it started still runs.
  bool something_is_left() const;
  // Waits until no such process runs. Returns false when timeout() passes.
  bool wait_until_nothing_is_left() const;

  // Waits, without reading, until the pipe of its output is full.
  bool wait_until_output_is_full() const;
  // Sends SIGINT repeatedly, as an impatient user does.
  bool interrupt_until_nothing_is_left() const;

  // Stops reading for good: closes our ends of the pipes.
  void hang_up();

 private:
  [[noreturn]] void run_child(const std::vector<std::string>& arguments) const;
  bool read_some();

  pid_t pid_ = -1;
  bool finished_ = false;
  FileDescriptor out_;
  FileDescriptor err_;
  FileDescriptor lifeline_;
  CommandResult result_;
};

// A named pipe that makes a worker wait for the test: its script reads a line.
class Gate {
 public:
  Gate();

  // A shell command that waits until the gate opens.
  std::string wait() const { return "read line <" + path_ + "; "; }
  // The file that is not readable until then.
  const std::string& path() const { return path_; }
  // A shell command that opens the gate.
  std::string pass() const { return "echo open >" + path_; }

  void open() const;
  // Waits for a worker to open the gate; returns whether it did.
  bool opened() const;

 private:
  TestDirectory folder_;
  std::string path_ = folder_ / "gate";
};

// Runs the command to its end.
CommandResult run_lockstep(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment = {});

// The arguments for `lockstep run -n workers sh -c script`. Kills workers that
// ignore SIGTERM after half a second.
std::vector<std::string> shell_workers(int workers, const std::string& script);

// The sorted lines of `text`, because ranks write in any order.
std::vector<std::string> sorted_lines(const std::string& text);

}  // namespace lockstep
