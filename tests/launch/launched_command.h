// The built `lockstep`, started as a user would, with its output in our hands.
//
// Every process that it starts inherits one end of a pipe, the lifeline: when
// that is at its end, nothing of them is left, wherever they have gone.
//
// Threads: one thread at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/testing/test_directory.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

struct CommandResult {
  int exit_code = -1;  // 128 + the signal, when one killed it
  std::string out;
  std::string err;
};

// What the command's standard output and error are.
enum class Terminal { kNone, kPseudo };

class LaunchedCommand {
 public:
  // Long enough for a busy machine; nothing is expected to take this long.
  static Deadline patience();

  // Starts `lockstep` with `arguments`; "NAME=value" in `environment` comes on
  // top of ours. On a pseudo terminal (90 columns, UTF-8) standard output and
  // error both end up in `out`.
  explicit LaunchedCommand(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment = {},
                           Terminal terminal = Terminal::kNone);
  // Kills what is left.
  ~LaunchedCommand();
  LaunchedCommand(const LaunchedCommand&) = delete;
  LaunchedCommand& operator=(const LaunchedCommand&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // Reads until `text` has come `times` times on either stream; false when the
  // output ends before, or patience.
  bool wait_for(const std::string& text, int times = 1);

  const std::string& output_so_far() const { return result_.out; }
  const std::string& errors_so_far() const { return result_.err; }

  // Waits for its end and returns all that was written. Once.
  CommandResult finish();

  // Waits for it to be stopped, as by SIGSTOP.
  bool wait_until_stopped() const;

  // Whether something that it started, itself included, still runs.
  bool something_is_left() const;
  // Waits until nothing is; false when patience ends before.
  bool wait_until_nothing_is_left() const;

  // Waits, without reading, until the pipe of its output holds no more.
  bool wait_until_output_is_full() const;
  // Sends SIGINT again and again, as an impatient user would.
  bool interrupt_until_nothing_is_left() const;

  // Stops reading for good: closes our ends.
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

// Lets a worker wait for a test: a named pipe that a script reads a line from.
class Gate {
 public:
  Gate();

  // For a shell: waits until the gate is opened.
  std::string wait() const { return "read line <" + path_ + "; "; }
  // The file that cannot be read until then.
  const std::string& path() const { return path_; }
  // For a shell: opens it.
  std::string pass() const { return "echo open >" + path_; }

  void open() const;
  // Whether it was opened by a worker; waits for that.
  bool opened() const;

 private:
  TestDirectory folder_;
  std::string path_ = folder_ / "gate";
};

// Runs it to its end.
CommandResult run_lockstep(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment = {});

// Those for `lockstep run -n workers sh -c script`.
// Those that do not listen are killed after half a second.
std::vector<std::string> shell_workers(int workers, const std::string& script);

// The lines of `text`, sorted: ranks write in any order.
std::vector<std::string> sorted_lines(const std::string& text);

}  // namespace lockstep
