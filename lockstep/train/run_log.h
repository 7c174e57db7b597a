// What a run of `lockstep train` writes down about itself while it goes on, in
// a folder: curves for TensorBoard, and the same as JSON lines for everything
// else.
//
// Every so many steps (the trainer's log_interval) ranks gather what they came
// to since the last time, in one small collective, and rank 0 appends a record
// to each of the two files. Steps are counted over the whole run; one that is
// resumed appends to the JSON lines and begins another event file.
//
// A rank's waiting time is what its ProcessGroups' operations kept it waiting
// in its training steps: Recorder::time_waited() over forward and backward
// passes, the optimizer and the averages of models, divided by the steps. It
// holds, besides waiting for slower ranks, the part of moving and adding up
// data that nothing else was done beside: all ranks of a balanced job have
// some, and the one that waits least is the one that the others wait for.
//
// Threads: belongs to one thread; every rank of the group makes it and calls
//          its methods at the same point of the program.
// Errors:  begin() throws on every rank when the files cannot be made. What
//          cannot be written later is lost to the log, not to the run: the
//          first time a warning says so, and the files stay whole. What
//          collectives throw.
// See docs/guides/training_logs.md and docs/formats/metrics.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/progress_record.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/appended_file.h"
#include "lockstep/train/event_file.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/trainer.h"
#include "lockstep/train/training_step.h"

namespace lockstep {

class RunLog {
 public:
  // Touches nothing yet, and without a log_dir in the options never does: then
  // no method costs anything. `options` and `training_step` must outlive the
  // object.
  RunLog(const TrainerOptions& options, std::shared_ptr<ProcessGroup> group,
         TrainingStep& training_step);

  // Makes the folder and the files, and writes what the run is. `step` of its
  // steps have been made before; `steps_per_epoch` make an epoch.
  void begin(const StartRecord& start, std::int64_t step,
             std::int64_t steps_per_epoch);

  // Speed is that from here on: evaluation is not counted.
  void epoch_begins();

  // Around each step of the optimizer, at the learning rate `rate`.
  void step_begins(double rate);
  void step_done();
  // What this rank's steps have come to; before the step_done() whose record
  // is to count them.
  void add(const Metrics& metrics) { recent_.metrics += metrics; }

  // `test` is what the record's test accuracy is of, where it has one.
  void epoch_done(const EpochRecord& record, const Metrics& test);

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  // On rank 0.
  struct Files {
    EventFile events;
    AppendedFile lines;
    bool warned = false;
  };
  // This rank's, since the last record.
  struct Recent {
    Metrics metrics{};
    Seconds waited{};
    std::int64_t steps = 0;
  };
  // Of all ranks.
  struct Gathered {
    Metrics metrics{};
    std::vector<double> waited{};  // by rank, seconds a step
  };

  bool on() const { return !options_.log_dir.empty(); }
  void make_files(const StartRecord& start);
  bool is_due() const;
  Seconds time_waited() const;
  Gathered gather();
  void write_step();
  void write(const std::vector<Scalar>& scalars, const std::string& line);

  const TrainerOptions& options_;
  std::shared_ptr<ProcessGroup> group_;
  TrainingStep& training_step_;
  std::optional<Files> files_;
  std::int64_t step_ = 0;  // those that are done, of the whole run
  std::int64_t steps_per_epoch_ = 1;

  double rate_ = 0;            // of the present step
  Seconds waited_before_{};    // time_waited() when it began
  Clock::time_point since_{};  // the last record
  Recent recent_;
};

}  // namespace lockstep
