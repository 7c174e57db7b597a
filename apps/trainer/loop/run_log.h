// A running `lockstep train` logs its curves to a folder: for TensorBoard, and
// as JSON lines for other programs.
//
// Every log_interval steps (the trainer's option) the ranks gather their
// results since the last time, in one small collective, and rank 0 appends a
// record to each of the two files. Steps count over the whole run; a resumed
// run appends to the JSON lines and begins another event file.
//
// A rank's waiting time is the time that it waited for its ProcessGroups'
// operations in its training steps: Recorder::time_waited() over forward and
// backward passes, the optimizer and the averages of models, divided by the
// steps. Besides the wait for slower ranks it includes communication that did
// not overlap with computation: all ranks of a balanced job have some, and the
// rank that waits least is the one that the others wait for.
//
// Threads: an object belongs to one thread; every rank of the group makes it
//          and calls its methods at the same point of the program.
// Errors:  begin() throws on every rank when the files cannot be created. When
//          a later write fails, the log loses the record, and the run
//          continues: the first loss logs a warning, and the files stay whole.
//          Those of collectives.
// See docs/guides/training_logs.md and docs/formats/metrics.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/trainer/loop/trainer.h"
#include "apps/trainer/loop/training_step.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/run_files.h"
#include "lockstep/evaluate/event_file.h"
#include "src/base/progress_record.h"
#include "src/evaluate/metrics.h"

namespace lockstep {

class RunLog {
 public:
  // Does not access the folder yet. Without a log_dir in the options all
  // methods do nothing, at no cost. `options` and `training_step` must outlive
  // the object.
  RunLog(const TrainerOptions& options, std::shared_ptr<ProcessGroup> group,
         TrainingStep& training_step);

  // Creates the folder and the files, and writes the description of the run.
  // The run has made `step` steps before; an epoch has `steps_per_epoch` steps.
  void begin(const StartRecord& start, std::int64_t step,
             std::int64_t steps_per_epoch);

  // The speed is measured from here on, so evaluation does not count.
  void epoch_begins();

  // Call these around each step of the optimizer, at the learning rate `rate`.
  void step_begins(double rate);
  void step_done();
  // Adds this rank's results; call it before the step_done() whose record
  // includes them.
  void add(const Metrics& metrics) { recent_.metrics += metrics; }

  // `test` holds the metrics behind the record's test accuracy, if it has one.
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
  std::int64_t step_ = 0;  // done so far, of the whole run
  std::int64_t steps_per_epoch_ = 1;

  double rate_ = 0;            // of the current step
  Seconds waited_before_{};    // time_waited() when it began
  Clock::time_point since_{};  // the last record
  Recent recent_;
};

}  // namespace lockstep
