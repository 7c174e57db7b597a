// Starts the workers of a job on this host, watches them, and ends them all
// when one dies or the user asks.
//
// Workers' output comes tagged with their rank; rank 0's progress records are
// drawn. When the job is over nothing is left of it: no worker, and nothing
// that a worker started. See docs/design/launch.md.
//
// Threads: one at a time, the thread that constructed the SignalWatch. Other
//          threads may exist; no other part of the process may start children
//          meanwhile.
// Errors:  CannotExecute when the program cannot be started, SystemError when
//          the system refuses processes, pipes or logs, InvalidArgument. A
//          worker's death is a result, not an error.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/orphan_watch.h"
#include "lockstep/launch/record_collector.h"
#include "lockstep/launch/screen.h"
#include "lockstep/launch/signal_watch.h"
#include "lockstep/launch/worker_environment.h"
#include "lockstep/launch/worker_table.h"

namespace lockstep {

// Whether each worker runs on its own share of the cores. Applies where there
// is a core for each of several workers and no control group's quota takes part
// of the cores' time away.
enum class CpuBinding { kCores, kNone };

// Whether workers' lines come tagged with their rank. Without tags a worker's
// bytes pass as they are: for jobs of which only one rank writes.
enum class OutputTags { kRank, kNone };

struct LaunchOptions {
  // The program, searched for in PATH, and its arguments.
  std::vector<std::string> command;
  JobEnvironment job;
  // "NAME=value", from which each worker's environment is made.
  std::vector<std::string> environment = current_environment();
  CpuBinding cpu_binding = CpuBinding::kCores;
  OutputTags tags = OutputTags::kRank;  // of several workers
  // Rank N's output is kept in rank-N.log there too; empty: nowhere. Created
  // when missing.
  std::string log_directory;
  // What rank 0 reads; lent. Negative: nothing. Other ranks read nothing.
  int standard_input = -1;
  // How long workers that are asked to end may take until they are killed.
  std::chrono::milliseconds grace{30'000};
};

struct JobResult {
  // 0 when every worker returned 0; as shells have it (ExitStatus::exit_code)
  // when one failed; 128 + the signal that asked the launcher to end.
  int exit_code = 0;
  std::optional<WorkerFailure> failure;
};

class Launcher {
 public:
  // `signals` and `screen` must outlive it.
  Launcher(LaunchOptions options, SignalWatch& signals, Screen& screen);

  // Runs the job to its end. Once.
  JobResult run();

 private:
  // kCollecting: a worker has failed, and the others are given the time to
  // write down what they know of it.
  enum class Phase { kRunning, kCollecting, kEnding, kKilling };

  void start_workers();
  void start_worker(int rank, const std::string& program,
                    const std::vector<int>& cores);
  std::string log_path(int rank) const;
  bool over();
  void turn();
  void take_signals();
  void take_signal(int signal);
  void resize();
  void suspend();
  void collect_records(Deadline deadline);
  void records_came();
  void reap_orphans();
  void look_for_failure();
  // Remembers those that failed since the last time.
  void note_failures();
  WorkerFailure failure_of(int rank) const;
  void keep_failure();
  void look_for_time();
  void look_for_reader();
  void end_job();
  void kill_job();
  void signal_everything(int signal);
  void finish_output();
  void report_end();

  LaunchOptions options_;
  SignalWatch& signals_;
  Screen& screen_;
  OrphanWatch orphans_;
  WorkerTable workers_;
  std::unique_ptr<RecordCollector> collector_;
  // There were records before the job, in a folder that the user named.
  bool old_records_ = false;
  Phase phase_ = Phase::kRunning;
  Deadline kill_at_ = Deadline::never();
  std::chrono::steady_clock::time_point started_;
  // Ranks that failed, and when, until the others were asked to end.
  struct Failed {
    int rank;
    std::chrono::steady_clock::time_point when;
  };
  std::vector<Failed> failed_;
  JobResult result_;
};

}  // namespace lockstep
