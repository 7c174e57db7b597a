// Starts the workers of a job on this host, watches them, and ends all of them
// when one dies or the user asks.
//
// The launcher tags workers' output with their rank and draws rank 0's progress
// records. When the job is over, no worker and no process that a worker started
// is left. See docs/design/launch.md.
//
// Threads: the thread that constructed the SignalWatch. Other threads may run,
//          but must not start child processes meanwhile.
// Errors:  CannotExecute when the program cannot be started, SystemError when
//          the system refuses processes, pipes or logs, InvalidArgument. A
//          worker's death is a result, not an error.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/faults/deaths.h"
#include "src/launch/launcher/elastic_host.h"
#include "src/launch/launcher/job_processes.h"
#include "src/launch/output/screen.h"
#include "src/launch/record/failure_report.h"
#include "src/launch/record/oom_kills.h"
#include "src/launch/record/record_collector.h"
#include "src/launch/record/worker_exception.h"
#include "src/launch/worker/placement.h"
#include "src/launch/worker/signal_watch.h"
#include "src/launch/worker/worker_environment.h"

namespace lockstep {

// Whether workers' lines are tagged with their rank. Without tags a worker's
// bytes pass unchanged, for jobs in which only one rank writes.
enum class OutputTags { kRank, kNone };

// Whether the other workers end when one dies, or form a new group without it.
enum class AfterDeath { kEndOthers, kReformInPlace };

// This host's workers, by local rank.
struct RunningWorkers {
  std::vector<pid_t> pids;
  // Their ranks; negative for one that has ended and that the job goes on
  // without, and for a replacement that is no member yet.
  std::vector<int> ranks;
  int world_size = 1;
};

struct LaunchOptions {
  // The program, searched for in PATH, and its arguments.
  std::vector<std::string> command;
  JobEnvironment job;
  // "NAME=value"; the base of each worker's environment.
  std::vector<std::string> environment = current_environment();
  Binding binding = Binding::kAuto;
  OutputTags tags = OutputTags::kRank;  // for several workers
  // The folder for rank-N.log, a copy of rank N's output; empty: no logs.
  // Created when missing.
  std::string log_directory;
  AfterDeath after_death = AfterDeath::kEndOthers;
  // With kReformInPlace, how many ranks a group needs; then job.max_restarts is
  // the number of workers that may be replaced. Both are the coordinator's
  // where launcher_id is set.
  int min_ranks = 1;
  // This launcher among those of the job's hosts, for ElasticRounds. Empty: it
  // is the only one.
  std::string launcher_id{};
  StreamPlan streams;
  // Receives the failure that ends the job; empty: no file.
  std::string error_file;
  // What the user is told once the workers have started; empty: nothing.
  std::string note;
  // Rank 0's standard input; borrowed. Negative: none. Other ranks have none.
  int standard_input = -1;
  // How long workers may take to end after SIGTERM before they are killed.
  std::chrono::milliseconds grace{30'000};
  // Readable once the job ends on another host, so that it must end here too;
  // borrowed. Negative: this is the only host.
  int ended_elsewhere = -1;
  // If set, is called when all workers have started, and again whenever these
  // change.
  std::function<void(const RunningWorkers&)> on_start{};
  // If set, is called once, when it is known which failed worker to blame
  // and before the others have ended.
  std::function<void(const WorkerFailure&)> on_failure{};
};

struct JobResult {
  // 0 when every worker returned 0; the failed worker's ExitStatus::exit_code
  // when one failed; 128 + the signal that asked the launcher to end, or
  // kExitStartAgain where it was SIGTERM, a worker ended with that, and every
  // other one with that or 0; 128 + SIGPIPE when the output's reader has gone;
  // 1 when output cannot be written for another reason, or the store of a job
  // that re-forms in place is gone. Workers that were asked to end because of
  // another host do not count.
  int exit_code = 0;
  // The signal that asked the launcher to end, or 0.
  int signal = 0;
  // Whether the workers were asked to end because of another host.
  bool ended_elsewhere = false;
  // Whether they were asked to end because the store of a job that re-forms in
  // place is gone. The other hosts may go on, so on_failure is not called.
  bool lost_store = false;
  std::optional<WorkerFailure> failure;
  // Whether the ranks left records that say more than the report, or that the
  // user was told to read.
  bool keeps_records = false;
  std::vector<pid_t> pids;  // of the workers, by rank
};

class Launcher {
 public:
  // `signals` and `screen` must outlive the launcher.
  Launcher(LaunchOptions options, SignalWatch& signals, Screen& screen);

  // Runs the job to its end. Call it once.
  JobResult run();

 private:
  // kCollecting: a worker has failed, and the others have time to write their
  // records.
  enum class Phase { kRunning, kCollecting, kEnding };

  void start_workers();
  void tell_workers();  // on_start
  std::unique_ptr<Worker> make_worker(int local_rank);
  bool has_tags() const;
  // The streams of which equal lines of several workers are shown once.
  StreamSet folded() const;
  std::string log_path(int local_rank, int restarts) const;
  void turn();
  void take_signals();
  void take_signal(int signal);
  void resize();
  void suspend();
  void collect_records(Deadline deadline);
  void records_came();
  // Whether it has found one, or a death that the job survives.
  bool look_for_failure();
  // Records the workers that failed since the last call; whether there are any.
  bool note_failures();

  void begin_in_place();
  void tell(const std::string& text);
  WorkerTable& workers() { return processes_.workers(); }
  const WorkerTable& workers() const { return processes_.workers(); }
  bool is_given_up(int local_rank) const {
    return elastic_ && elastic_->is_given_up(local_rank);
  }
  // The first death after which the others formed no group, or null.
  const WorkerFailure* unsurvived_death() const;

  // Of those that failed, the one that ends the job.
  WorkerFailure cause() const;
  // Of a worker that has failed just now.
  Death death_of(int local_rank) const;
  WorkerFailure failure_of(const Death& death) const;
  std::optional<OomKills> oom_kills() const;
  bool records_add_to(const WorkerFailure& failure) const;
  bool ranks_left_records() const;
  void keep_failure();
  void look_for_write_error();
  void end_elsewhere();
  void announce_failure();
  void end_job();
  void note_saved_state();
  void finish_output();
  void report_end();

  LaunchOptions options_;
  SignalWatch& signals_;
  Screen& screen_;
  LineFolder folder_;  // before the workers, which write to it
  JobProcesses processes_;
  std::unique_ptr<RecordCollector> collector_;
  // The user's folder held records before the job, of another running job.
  bool old_records_ = false;
  bool had_records_ = false;   // when the workers were asked to end
  bool write_failed_ = false;  // and the user was told
  bool announced_ = false;     // the failure, to on_failure
  Phase phase_ = Phase::kRunning;
  std::chrono::steady_clock::time_point started_;
  std::optional<OomKills> oom_kills_before_;
  Deaths deaths_;  // by local rank; before the launcher asked others to end
  // That failed workers wrote down, by local rank.
  std::map<int, std::optional<WorkerException>> exceptions_;
  std::vector<int> stopped_;  // ranks that a signal had stopped by then
  JobResult result_;
  std::string program_;                  // its path
  std::vector<std::vector<int>> cores_;  // by local rank; empty: any
  // Where the job re-forms in place; null for another.
  std::unique_ptr<ElasticHost> elastic_;
};

}  // namespace lockstep
