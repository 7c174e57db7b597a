#include "src/launch/launcher/launcher.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"
#include "src/launch/record/record_folder.h"
#include "src/launch/worker/find_program.h"

namespace lockstep {
namespace {

// Survivors detect a death within 50 to 150 ms, between hosts 100 ms later, and
// write their records a few ms later. The end of a job may be delayed by this
// much.
constexpr std::chrono::milliseconds kLastRecords{300};
constexpr std::chrono::seconds kAskedRecords{5};

std::string path_of(const std::vector<std::string>& environment) {
  constexpr std::string_view kName = "PATH=";
  for (const std::string& variable : environment)
    if (variable.starts_with(kName)) return variable.substr(kName.size());
  return "/usr/local/bin:/usr/bin:/bin";
}

int shown_workers(const LaunchOptions& options) {
  int shown = 0;
  for (int local = 0; local < options.job.workers; ++local)
    if (options.streams.shown(local) != kNoStream) ++shown;
  return shown;
}

}  // namespace

Launcher::Launcher(LaunchOptions options, SignalWatch& signals, Screen& screen)
    : options_(std::move(options)),
      signals_(signals),
      screen_(screen),
      folder_(shown_workers(options_),
              [this](OutputStream stream, const std::string& line) {
                screen_.print_line(stream, line);
              }),
      processes_({.grace = options_.grace,
                  .store_url = options_.job.store_url,
                  .tell = [this](const std::string& text) { tell(text); }}) {}

JobResult Launcher::run() {
  started_ = std::chrono::steady_clock::now();
  oom_kills_before_ = count_oom_kills();
  old_records_ = has_records(options_.job.dump_directory);
  try {
    start_workers();
    tell_workers();
    if (!options_.note.empty() && options_.job.restarts == 0)
      tell(options_.note);
    do {
      while (!processes_.have_ended()) turn();
      // A worker may have ended after the last turn, and so may another one
      // that took its place.
    } while (look_for_failure() || !processes_.have_ended());
    if (deaths_.any()) announce_failure();
  } catch (...) {
    processes_.clear();
    throw;
  }
  finish_output();
  result_.pids = workers().pids();
  return result_;
}

void Launcher::start_workers() {
  if (options_.command.empty() || options_.job.workers < 1)
    throw InvalidArgument("a job needs a program and at least one worker");
  program_ =
      find_program(options_.command.front(), path_of(options_.environment));
  cores_ = place_workers(options_.binding, options_.job.workers);
  if (options_.after_death == AfterDeath::kReformInPlace) begin_in_place();
  for (int local = 0; local < options_.job.workers; ++local)
    workers().add(make_worker(local));
}

void Launcher::tell(const std::string& text) {
  screen_.settle();
  screen_.print_line(OutputStream::kErr, "lockstep: " + text);
}

void Launcher::begin_in_place() {
  elastic_ = std::make_unique<ElasticHost>(
      ElasticHostOptions{.job = options_.job,
                         .min_ranks = options_.min_ranks,
                         .launcher_id = options_.launcher_id},
      ElasticHost::Calls{
          .tell = [this](const std::string& text) { tell(text); },
          .start =
              [this](int local_rank) {
                workers().replace(make_worker(local_rank));
              },
          .end =
              [this](int local_rank) {
                const auto place = static_cast<std::size_t>(local_rank);
                workers().all()[place]->process().signal_group(SIGTERM);
              },
          .changed = [this] { tell_workers(); },
          .lost_store =
              [this] {
                result_.lost_store = true;
                if (result_.exit_code == 0) result_.exit_code = 1;
                if (phase_ == Phase::kRunning) end_job();
              }});
}

void Launcher::tell_workers() {
  if (!options_.on_start) return;
  const JobEnvironment& job = options_.job;
  RunningWorkers running{
      .pids = workers().pids(), .ranks = {}, .world_size = world_size_of(job)};
  for (int local = 0; local < job.workers; ++local)
    running.ranks.push_back(job.first_rank + local);
  if (elastic_) {
    running.ranks = elastic_->ranks();
    running.world_size = elastic_->world_size();
  }
  options_.on_start(running);
}

const WorkerFailure* Launcher::unsurvived_death() const {
  return elastic_ ? elastic_->unsurvived_death() : nullptr;
}

std::unique_ptr<Worker> Launcher::make_worker(int local_rank) {
  // After how many restarts of the job or, in a job that re-forms in place,
  // replacements.
  const int restarts =
      elastic_ ? elastic_->start(local_rank) : options_.job.restarts;
  const int rank = options_.job.first_rank + local_rank;
  const auto place = static_cast<std::size_t>(local_rank);
  JobEnvironment job = options_.job;
  job.restarts = restarts;
  WorkerCommand command{
      .program = program_,
      .arguments = options_.command,
      .environment = worker_environment(options_.environment, job, local_rank),
      .cores = cores_.empty() ? std::vector<int>() : cores_[place],
      .standard_input = rank == 0 ? options_.standard_input : -1,
      .signal_mask = signals_.original_mask()};
  if (elastic_)
    command.environment.push_back(
        fmt::format("{}={}", kElasticIdVariable, elastic_->id(local_rank)));
  const WorkerOptions worker{
      .rank = rank,
      .local_rank = local_rank,
      .company = has_tags() ? Company::kOthers : Company::kAlone,
      .log_path = log_path(local_rank, restarts),
      .log_need = restarts == 0 ? LogNeed::kNeeded : LogNeed::kWanted,
      .logged = options_.streams.logged(local_rank),
      .shown = options_.streams.shown(local_rank),
      .folded = folded()};
  // Of the worker whose place it takes.
  for (const auto& file : {exception_file(job, rank), fault_file(job, rank)}) {
    std::error_code ignored;
    if (!file.empty()) std::filesystem::remove(file, ignored);
  }
  return std::make_unique<Worker>(worker, std::move(command), screen_,
                                  &folder_);
}

bool Launcher::has_tags() const {
  return world_size_of(options_.job) > 1 && options_.tags == OutputTags::kRank;
}

StreamSet Launcher::folded() const {
  const auto is_folded = [this](OutputStream stream) {
    return options_.streams.fold.value_or(screen_.window(stream).has_value());
  };
  unsigned set = kNoStream;
  if (has_tags() && is_folded(OutputStream::kOut)) set |= kOutStream;
  if (has_tags() && is_folded(OutputStream::kErr)) set |= kErrStream;
  return static_cast<StreamSet>(set);
}

std::string Launcher::log_path(int local_rank, int restarts) const {
  if (options_.log_directory.empty() ||
      options_.streams.logged(local_rank) == kNoStream)
    return "";
  return fmt::format("{}{}/rank-{}.log", options_.log_directory,
                     restarts == options_.job.restarts
                         ? ""
                         : fmt::format("/restart-{}", restarts),
                     options_.job.first_rank + local_rank);
}

void Launcher::turn() {
  PollSet set;
  set.watch(signals_.descriptor(), POLLIN, [this] { take_signals(); });
  for (const auto& worker : workers().all()) {
    worker->watch_end(set);
    if (!screen_.full()) worker->watch_output(set);
  }
  screen_.watch(set);
  if (options_.ended_elsewhere >= 0 && phase_ == Phase::kRunning)
    set.watch(options_.ended_elsewhere, POLLIN, [this] { end_elsewhere(); });
  if (collector_)
    set.watch(collector_->descriptor(), POLLIN, [this] { records_came(); });
  if (elastic_ && phase_ == Phase::kRunning) elastic_->watch(set);
  set.wait(std::min(
      {processes_.due(), deaths_.cause_due(), screen_.due(), folder_.due()}));
  look_for_failure();
  processes_.look_for_time();
  folder_.release(Deadline::Clock::now());
  screen_.draw();
  look_for_write_error();
}

void Launcher::take_signals() {
  for (const int signal : signals_.take()) take_signal(signal);
}

void Launcher::take_signal(int signal) {
  if (signal == SIGCHLD) return processes_.look_for_orphans();
  if (signal == SIGWINCH) return resize();
  if (signal == SIGTSTP) return suspend();
  if (signal == SIGUSR1) return collect_records(kAskedRecords);
  // Also for a job that has just succeeded: its caller may have further jobs.
  if (result_.exit_code == 0) result_.exit_code = 128 + signal;
  if (result_.signal == 0) result_.signal = signal;
  if (processes_.are_killed()) return;
  if (phase_ == Phase::kEnding) {
    if (!is_from_terminal(signal)) return;
    tell(fmt::format("SIG{} received; killing the workers that are left",
                     ::sigabbrev_np(signal)));
    return processes_.kill();
  }
  tell(fmt::format("SIG{} received; ending {} worker{}", ::sigabbrev_np(signal),
                   options_.job.workers, options_.job.workers == 1 ? "" : "s"));
  if (phase_ == Phase::kCollecting) announce_failure();
  end_job();
}

void Launcher::resize() {
  screen_.resize();
  for (const auto& worker : workers().all()) worker->resize();
}

// Ctrl-Z stops the workers too. The terminal does not signal them, because they
// have their own process groups.
void Launcher::suspend() {
  if (phase_ != Phase::kRunning) return;
  screen_.settle();
  screen_.draw();
  workers().signal_all(SIGSTOP);
  ::kill(::getpid(), SIGSTOP);
  workers().signal_all(SIGCONT);
}

// Makes every running rank write its record, unless that is in progress.
void Launcher::collect_records(Deadline deadline) {
  if (collector_ || phase_ != Phase::kRunning) return;
  std::vector<int> living;
  for (const auto& worker : workers().all())
    if (!worker->process().exit_status()) living.push_back(worker->rank());
  try {
    collector_ = std::make_unique<RecordCollector>(options_.job.store_url,
                                                   options_.job.token,
                                                   std::move(living), deadline);
  } catch (const std::exception& error) {
    screen_.print_line(
        OutputStream::kErr,
        fmt::format("lockstep: the ranks' records are not available: {}",
                    error.what()));
  }
}

void Launcher::records_came() {
  const std::vector<int> written = collector_->written();
  collector_.reset();
  if (phase_ != Phase::kRunning) return;
  if (!written.empty()) result_.keeps_records = true;
  screen_.print_line(
      OutputStream::kErr,
      written.empty()
          ? "lockstep: no rank listens, so no rank wrote its record"
          : fmt::format(
                "lockstep: records of rank{} {}; next: lockstep blame {}",
                written.size() == 1 ? "" : "s", fmt::join(written, ", "),
                options_.job.dump_directory));
}

bool Launcher::look_for_failure() {
  if (phase_ == Phase::kCollecting) {
    const bool all_ended =
        workers().ended();  // first: all their ends are noted
    const bool found = note_failures();
    if (all_ended || (!collector_ && deaths_.know_their_cause())) {
      announce_failure();
      end_job();
    }
    return found;
  }
  if (phase_ != Phase::kRunning) return false;
  const bool found = note_failures();
  if (phase_ != Phase::kRunning) return found;
  if (deaths_.any()) {
    collector_.reset();
    collect_records(kLastRecords);
    phase_ = Phase::kCollecting;
    if (!collector_ && deaths_.know_their_cause()) {
      announce_failure();
      end_job();
    }
  } else if (workers().ended() && !processes_.have_ended()) {
    end_job();  // all succeeded, but a process that they started still runs
  }
  return found;
}

// Without a reader (`lockstep evaluate | head`) the job ends like a program in
// a pipe. Any other error means that output is lost.
void Launcher::look_for_write_error() {
  const int error = screen_.error();
  if (error == 0 || std::exchange(write_failed_, true)) return;
  if (result_.exit_code == 0)
    result_.exit_code = error == EPIPE ? 128 + SIGPIPE : 1;
  const bool ends = phase_ == Phase::kRunning && !workers().ended();
  if (error != EPIPE)
    screen_.print_line(
        OutputStream::kErr,
        fmt::format("lockstep: output cannot be written ({}){}",
                    std::strerror(error), ends ? "; ending the workers" : ""));
  if (ends) end_job();
}

void Launcher::end_elsewhere() {
  // A worker that has failed already may be the cause.
  note_failures();
  if (deaths_.any() || phase_ != Phase::kRunning) return;
  result_.ended_elsewhere = true;
  collector_.reset();
  end_job();
}

void Launcher::announce_failure() {
  if (result_.lost_store || std::exchange(announced_, true) ||
      !options_.on_failure)
    return;
  options_.on_failure(cause());
}

void Launcher::end_job() {
  phase_ = Phase::kEnding;
  deaths_.close();
  stopped_ = workers().stopped();
  had_records_ = has_records(options_.job.dump_directory);
  processes_.ask_to_end();
}

// Workers that a scheduler's signal stopped may have saved their state.
void Launcher::note_saved_state() {
  if (result_.signal != SIGTERM || result_.exit_code != 128 + SIGTERM) return;
  const auto ended_with = [&](auto... codes) {
    return [=](const std::unique_ptr<Worker>& worker) {
      const ExitStatus status = worker->process().last_status();
      return status.signal == 0 && ((status.code == codes) || ...);
    };
  };
  const auto given_up = [this](const std::unique_ptr<Worker>& worker) {
    return is_given_up(worker->local_rank());
  };
  const auto saved = ended_with(0, kExitStartAgain);
  if (std::ranges::all_of(workers().all(),
                          [&](const std::unique_ptr<Worker>& worker) {
                            return given_up(worker) || saved(worker);
                          }) &&
      std::ranges::any_of(workers().all(), ended_with(kExitStartAgain)))
    result_.exit_code = kExitStartAgain;
}

void Launcher::finish_output() {
  for (const auto& worker : workers().all()) worker->drain();
  folder_.release_all();
  note_saved_state();
  screen_.settle();
  report_end();
  for (;;) {
    screen_.draw();
    look_for_write_error();
    if (screen_.drained()) return;
    // Waits for a reader that pauses, until the user sends another signal.
    bool tired = false;
    PollSet set;
    set.watch(signals_.descriptor(), POLLIN, [&] {
      for (const int signal : signals_.take())
        if (asks_to_end(signal)) {
          tired = true;
          result_.signal = signal;
        }
    });
    screen_.watch(set);
    set.wait(Deadline::never());
    if (tired) return;
  }
}

}  // namespace lockstep
