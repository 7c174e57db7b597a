// A worker of a job: its process, and the route of its output to the screen,
// its log and the last lines of a failure report.
//
// Threads: one thread at a time.
// Errors:  SystemError when the process cannot be started, or a log that it
//          needs cannot be created; InvalidArgument when a worker of a running
//          job writes that log.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/deadline.h"
#include "src/launch/output/line_folder.h"
#include "src/launch/output/line_tail.h"
#include "src/launch/output/output_tagger.h"
#include "src/launch/output/screen.h"
#include "src/launch/output/stream_plan.h"
#include "src/launch/worker/worker_process.h"
#include "src/net/poll_set.h"

namespace lockstep {

// Whether a worker shares the screen with others.
enum class Company { kAlone, kOthers };

// Whether a log that cannot be created is an error. At the first start it is,
// and the user names another folder; a worker that starts again does without,
// because a full disk must not end a job that trains.
enum class LogNeed { kNeeded, kWanted };

struct WorkerOptions {
  int rank = 0;        // in the job
  int local_rank = 0;  // on this host
  Company company = Company::kOthers;
  std::string log_path;  // empty: no log; its folders are created
  LogNeed log_need = LogNeed::kNeeded;
  StreamSet logged = kBothStreams;
  StreamSet shown = kBothStreams;
  StreamSet folded = kNoStream;
};

class Worker {
 public:
  // Starts the process. `screen` must outlive the worker, and so must `folder`,
  // through which the lines of `options.folded` streams go there. Rank 0 gets a
  // progress pipe.
  Worker(const WorkerOptions& options, WorkerCommand command, Screen& screen,
         LineFolder* folder = nullptr);

  int rank() const { return rank_; }
  int local_rank() const { return local_rank_; }
  WorkerProcess& process() { return process_; }
  const WorkerProcess& process() const { return process_; }
  const LineTail& tail() const { return tail_; }
  // Whether a line of the tail went to standard error.
  bool tail_has_errors() const { return lines_since_error_ < LineTail::kLines; }
  // The log, if it has been written so far; else empty.
  std::string whole_log() const { return log_ ? log_path_ : std::string(); }
  // Whether the reader of standard error still sees the worker's last lines:
  // they went there, and few lines followed.
  bool in_sight() const;

  // Sets its pseudo-terminals to the screen's size.
  void resize();

  // Adds the worker's output to `set`; wait() then reads it.
  void watch_output(PollSet& set);

  // Adds the worker's end to `set`, to wake the loop.
  void watch_end(PollSet& set);

  // Reads all available output and passes on last lines without a newline. Does
  // not wait for later output of the worker's descendants.
  void drain();

 private:
  struct Channel {
    OutputStream stream;
    FileDescriptor* pipe;
    OutputTagger tagger;
    bool on_terminal = false;
    // Of a bar that carriage returns overwrite: the last state shown, and when
    // the next one may be.
    std::string state{};
    Deadline next_state = Deadline(std::chrono::seconds(0));
  };

  bool read_output(Channel& channel);
  bool read_progress();
  void share_screen();
  void show_record(std::string_view line);
  void show_line(OutputStream stream, std::string_view line);
  void show_state(Channel& channel);
  void pass_on(OutputStream stream, std::string_view line);
  void keep_log(std::string_view bytes);
  bool is_shown(OutputStream stream) const;

  int rank_;
  int local_rank_;
  std::string tag_;  // "[rank 1] "; empty for a single worker
  Screen& screen_;
  LineFolder* folder_;
  StreamSet folded_;
  // A single worker has the screen to itself until it writes progress records.
  bool raw_;
  StreamSet logged_;
  StreamSet shown_;
  FileDescriptor log_;
  std::string log_path_;
  LineTail tail_;
  std::size_t lines_since_error_ = LineTail::kLines;
  std::int64_t lines_before_ = 0;   // screen lines up to its last one
  bool printed_elsewhere_ = false;  // to another place than standard error
  WorkerProcess process_;
  Channel out_;
  Channel err_;
  OutputTagger records_;
};

}  // namespace lockstep
