#include "apps/trainer/loop/run_log.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/checkpoint/rank_zero.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLinesName = "metrics.jsonl";

// Seconds since 1970.
double now() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Numbers that are not finite become null.
std::string line_of(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A progress record and its position in the run.
Json to_json(const ProgressRecord& record, std::int64_t step) {
  Json object = Json::parse(encode_progress(record));
  object["time"] = now();
  object["step"] = step;
  return object;
}

}  // namespace

RunLog::RunLog(const TrainerOptions& options,
               std::shared_ptr<ProcessGroup> group, TrainingStep& training_step)
    : options_(options),
      group_(std::move(group)),
      training_step_(training_step) {}

void RunLog::begin(const StartRecord& start, std::int64_t step,
                   std::int64_t steps_per_epoch) {
  if (!on()) return;
  step_ = step;
  steps_per_epoch_ = steps_per_epoch;
  run_on_rank_zero(*group_, "creating the files of the log",
                   [&] { make_files(start); });
}

void RunLog::make_files(const StartRecord& start) try {
  const auto& folder = options_.log_dir;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw SystemError(
        "cannot create the folder \"" + folder.string() + "\" for the log",
        error.value());
  AppendedFile lines(folder / kLinesName);
  files_.emplace(Files{EventFile(folder), std::move(lines)});
  files_->events.begin_at(step_);
  files_->lines.append_line(line_of(to_json(start, step_)));
} catch (const SystemError& error) {
  throw Error(std::string(error.what()) +
              "\n  next:    name another folder for the log, or free space "
              "in this one and make it writable");
}

void RunLog::epoch_begins() { since_ = Clock::now(); }

// As for progress reports: by the step in the epoch, and at its end.
bool RunLog::is_due() const {
  const std::int64_t done = step_ % steps_per_epoch_ + 1;
  return done % options_.log_interval == 0 || done == steps_per_epoch_;
}

// Zero without a recorder, as in groups made by hand.
RunLog::Seconds RunLog::time_waited() const {
  const auto& world = group_->core().world();
  return world ? Seconds(world->recorder()->time_waited()) : Seconds();
}

void RunLog::step_begins(double rate) {
  if (!on()) return;
  rate_ = rate;
  if (is_due()) training_step_.measure_grad_norm();
  waited_before_ = time_waited();
}

void RunLog::step_done() {
  if (!on()) return;
  recent_.waited += time_waited() - waited_before_;
  ++recent_.steps;
  const bool due = is_due();
  ++step_;
  if (due) write_step();
}

RunLog::Gathered RunLog::gather() {
  const auto [metrics, waited, steps] = std::exchange(recent_, {});
  std::vector<double> own{metrics.loss, static_cast<double>(metrics.correct),
                          static_cast<double>(metrics.samples),
                          waited.count() / static_cast<double>(steps)};
  std::vector<double> all(own.size() *
                          static_cast<std::size_t>(group_->size()));
  group_->all_gather(view(own), view(all), {.label = "metrics for the log"})
      .wait();
  Gathered gathered;
  for (auto rank = all.begin(); rank != all.end(); rank += own.size()) {
    gathered.metrics += {rank[0], static_cast<std::int64_t>(rank[1]),
                         static_cast<std::int64_t>(rank[2])};
    gathered.waited.push_back(rank[3]);
  }
  return gathered;
}

void RunLog::write_step() {
  const auto now_here = Clock::now();
  const Seconds elapsed = now_here - std::exchange(since_, now_here);
  const auto [metrics, waited] = gather();
  if (!files_) return;
  const double speed = static_cast<double>(metrics.samples) / elapsed.count();
  std::vector<Scalar> scalars{{"train/loss", metrics.mean_loss()},
                              {"train/accuracy", metrics.accuracy()},
                              {"train/learning_rate", rate_},
                              {"train/images_per_second", speed}};
  Json object{{"record", "step"},
              {"time", now()},
              {"epoch", (step_ - 1) / steps_per_epoch_ + 1},
              {"step", step_},
              {"loss", metrics.mean_loss()},
              {"accuracy", metrics.accuracy()},
              {"learning_rate", rate_},
              {"images_per_second", speed}};
  if (const auto norm = training_step_.grad_norm()) {
    scalars.push_back({"train/gradient_norm", *norm});
    object["gradient_norm"] = *norm;
  }
  object["wait"] = waited;
  for (std::size_t rank = 0; rank < waited.size(); ++rank)
    scalars.push_back({"wait/rank_" + std::to_string(rank), waited[rank]});
  write(scalars, line_of(object));
}

void RunLog::epoch_done(const EpochRecord& record, const Metrics& test) {
  if (!files_) return;
  std::vector<Scalar> scalars{{"train/epoch_loss", record.train_loss},
                              {"train/epoch_accuracy", record.train_accuracy}};
  if (record.seconds)
    scalars.push_back({"train/epoch_seconds", *record.seconds});
  Json object = to_json(record, step_);
  if (record.test_accuracy) {
    scalars.push_back({"test/loss", test.mean_loss()});
    scalars.push_back({"test/accuracy", *record.test_accuracy});
    object["test_loss"] = test.mean_loss();
  }
  write(scalars, line_of(object));
}

// A disk that is full for a while loses only the records of that time.
void RunLog::write(const std::vector<Scalar>& scalars,
                   const std::string& line) try {
  files_->lines.append_line(line);
  files_->events.add(step_, scalars);
} catch (const Error& error) {
  if (std::exchange(files_->warned, true)) return;
  log(LogLevel::kWarn,
      "training continues, and later records are appended when possible, "
      "after an error: " +
          std::string(error.what()));
}

}  // namespace lockstep
