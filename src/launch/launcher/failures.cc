// The launcher's notes of failed workers, and its report at the end of a job.
#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "src/launch/launcher/launcher.h"
#include "src/launch/record/job_record.h"
#include "src/launch/record/record_errors.h"
#include "src/launch/record/record_folder.h"

namespace lockstep {

bool Launcher::note_failures() {
  // Read first and noted last: a death before a good end stays before it.
  const std::vector<int> ended_well = workers().ended_well();
  bool any = false;
  for (const int local : workers().failed()) {
    if (deaths_.has(local) || is_given_up(local)) continue;
    const auto place = static_cast<std::size_t>(local);
    any = true;
    workers().all()[place]->drain();
    // Read first: a worker in its place starts without its files.
    const Death death = death_of(local);
    exceptions_[local] = read_worker_exception(
        exception_file(options_.job, workers().all()[place]->rank()));
    if (elastic_ && phase_ == Phase::kRunning &&
        elastic_->goes_on_without(local, failure_of(death)))
      continue;
    deaths_.add(death);
  }
  if (elastic_)
    for (const int local : ended_well) elastic_->note_good_end(local);
  return any;
}

Death Launcher::death_of(int local_rank) const {
  const Worker& worker = *workers().all()[static_cast<std::size_t>(local_rank)];
  // In a job that re-forms in place, ranks change: notes name another number.
  return {.id = local_rank,
          .when = std::chrono::steady_clock::now(),
          .end = {.rank = elastic_ ? -1 : worker.rank(),
                  .status = worker.process().last_status(),
                  .note = read_fault_note(
                      fault_file(options_.job, worker.rank()))}};
}

// Where the others were to go on without a rank and could not, as in a program
// that never forms another group, that rank is the cause.
WorkerFailure Launcher::cause() const {
  const WorkerFailure* const death = unsurvived_death();
  if (death == nullptr) return failure_of(deaths_.cause());
  WorkerFailure failure = *death;
  failure.lines_in_sight = false;  // others have printed since
  return failure;
}

WorkerFailure Launcher::failure_of(const Death& death) const {
  const auto place = static_cast<std::size_t>(death.id);
  const Worker& worker = *workers().all()[place];
  const std::chrono::duration<double> lived = death.when - started_;
  return {.rank = worker.rank(),
          .workers = world_size_of(options_.job),
          .kind = kind_of(death.end),
          .pid = worker.process().pid(),
          .status = death.end.status,
          .seconds = lived.count(),
          .program = options_.command.front(),
          .last_lines = worker.tail().lines(),
          .has_error_lines = worker.tail_has_errors(),
          .lines_in_sight = worker.in_sight(),
          .log_path = worker.whole_log(),
          .record_folder = {},
          .oom_kills = oom_kills(),
          .exception = exceptions_.at(death.id)};
}

// Since the job began.
std::optional<OomKills> Launcher::oom_kills() const {
  auto now = count_oom_kills();
  if (!now || !oom_kills_before_ || now->of != oom_kills_before_->of)
    return std::nullopt;
  now->count -= oom_kills_before_->count;
  return now;
}

// Whether the ranks' records say more than the report does. Of a rank that
// ended by itself and has said why, they only say that the others missed it.
// Standard output, such as its losses, does not say why.
bool Launcher::records_add_to(const WorkerFailure& failure) const {
  const bool said_why = failure.exception || failure.has_error_lines;
  if (failure.kind != EndKind::kByItself || !said_why) return true;
  return have_errors_beside_loss_of(failure.rank, options_.job.dump_directory);
}

// Next to the ranks' records, if there are any of this job.
void Launcher::keep_failure() {
  WorkerFailure& failure = result_.failure.value();
  const std::string& folder = options_.job.dump_directory;
  if (folder.empty() || old_records_ || !has_records(folder)) return;
  if (records_add_to(failure)) result_.keeps_records = true;
  if (result_.keeps_records) failure.record_folder = folder;
  try {
    write_job_record(folder,
                     {.workers = failure.workers,
                      .rank = failure.rank,
                      .signal = failure.status.signal,
                      .exit_code = failure.status.code,
                      .seconds = failure.seconds,
                      .lost_a_peer = failure.kind == EndKind::kConsequence,
                      .stopped = stopped_});
  } catch (const SystemError& error) {
    screen_.print_line(OutputStream::kErr,
                       std::string("lockstep: ") + error.what());
  }
}

// Records that ranks wrote after they were asked to end only say that others
// have ended.
bool Launcher::ranks_left_records() const {
  return phase_ == Phase::kRunning ? has_records(options_.job.dump_directory)
                                   : had_records_;
}

void Launcher::report_end() {
  // One that the job was to survive may have ended it, as in a program without
  // elastic::run().
  const WorkerFailure* const death =
      result_.ended_elsewhere && !deaths_.any() ? unsurvived_death() : nullptr;
  if (deaths_.any() || death != nullptr) {
    result_.failure = death != nullptr ? *death : cause();
    result_.exit_code = result_.failure->status.exit_code();
    keep_failure();
    if (elastic_) elastic_->tell_of_early_end();
    std::istringstream report(describe(*result_.failure));
    for (std::string line; std::getline(report, line);)
      screen_.print_line(OutputStream::kErr, line);
  } else if (!old_records_ && ranks_left_records()) {
    result_.keeps_records = true;
    screen_.print_line(
        OutputStream::kErr,
        fmt::format("lockstep: ranks left records; next: lockstep blame {}",
                    options_.job.dump_directory));
  }
}

}  // namespace lockstep
