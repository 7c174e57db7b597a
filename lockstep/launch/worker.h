// A worker of a job: its process, and the way of what it writes to the screen,
// its log, and the lines that a report on its end shows.
//
// Threads: one thread at a time.
// Errors:  SystemError when it cannot be started or its log cannot be created.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/launch/line_tail.h"
#include "lockstep/launch/output_tagger.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/screen.h"
#include "lockstep/launch/worker_process.h"

namespace lockstep {

// Whether a worker shares the screen with others.
enum class Company { kAlone, kOthers };

struct WorkerOptions {
  int rank = 0;
  Company company = Company::kOthers;
  std::string log_path;  // empty: no log
};

class Worker {
 public:
  // Starts it. `screen` must outlive it. Rank 0 gets a progress pipe.
  Worker(const WorkerOptions& options, WorkerCommand command, Screen& screen);

  int rank() const { return rank_; }
  WorkerProcess& process() { return process_; }
  const WorkerProcess& process() const { return process_; }
  const LineTail& tail() const { return tail_; }
  // Whether the reader of standard error has its last lines still before them:
  // they went there, and few others have come after.
  bool in_sight() const;

  // Tells its terminals the size of the screen's.
  void resize();

  // Reads what it writes, as it comes.
  void watch_output(PollSet& set);

  // Wakes the loop up when it ends.
  void watch_end(PollSet& set);

  // Reads all that is there, and passes on last lines without a newline. What
  // its own descendants may write later is not waited for.
  void drain();

 private:
  struct Channel {
    OutputStream stream;
    FileDescriptor* pipe;
    OutputTagger tagger;
  };

  bool read_output(Channel& channel);
  bool read_progress();
  void show_record(std::string_view line);
  void show_line(OutputStream stream, std::string_view line);
  void keep_log(std::string_view bytes);

  int rank_;
  std::string tag_;  // "[rank 1] "; alone it has none
  Screen& screen_;
  // Alone, it has the screen to itself until it asks for a progress display.
  bool raw_;
  FileDescriptor log_;
  std::string log_path_;
  LineTail tail_;
  std::int64_t lines_before_ = 0;   // of the screen, up to its last line
  bool printed_elsewhere_ = false;  // than to standard error's place
  WorkerProcess process_;
  Channel out_;
  Channel err_;
  OutputTagger records_;
};

}  // namespace lockstep
