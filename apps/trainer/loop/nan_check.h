// Ends a run whose loss or weights are no longer finite, on all ranks alike,
// and keeps such a state out of its checkpoints.
//
// A rank notes its losses where it reads them anyway. The ranks decide at each
// report and before each checkpoint, from a reduced value; only there weights,
// buffers and the optimizer's state are read as well. What --on-nan says then:
//
//   stop    the first loss that is not finite ends the run
//   skip    a step whose gradients are not finite is skipped (TrainingStep);
//           weights that are not finite end the run
//   ignore  nothing ends the run
//
// With stop and skip the run also ends after kMostSkipped skipped steps in a
// row: the scale of float16 has fallen by 2^64 then, which mends no overflow.
//
// Threads: an object belongs to one thread; every rank of the group calls the
//          collectives at the same point of the program.
// Errors:  Error that names the step and the newest checkpoint, on every rank;
//          and quotes the error of a checkpoint that could not be written.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "apps/options/training_options.h"
#include "apps/trainer/loop/strategies.h"
#include "apps/trainer/model/models.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "src/evaluate/metrics.h"

namespace lockstep {

// What is not finite on some rank of the group: the first such parameter or
// buffer of `model`, or its outputs for an image of the shape `images`, as
// after a step that made finite weights too large, or the state of `optimizer`,
// of which each rank reads what it holds: the square of a finite gradient may
// be too large. Empty if all is finite. A collective.
std::string first_not_finite(
    Classifier& model, const ImageShape& images, ProcessGroup& group,
    const torch::optim::Optimizer* optimizer = nullptr);

// A step of the optimizer on this rank, once its loss is known.
struct FinishedStep {
  std::int64_t number = 0;  // in the whole run, from 0
  Metrics metrics{};        // this rank's, of the step alone
  bool skipped = false;     // on all ranks
};

class NanCheck {
 public:
  static constexpr std::int64_t kMostSkipped = 64;

  // `options` and `replica` must outlive the object. `newest_checkpoint` is
  // called on every rank before an error; it returns a path, or nothing without
  // a checkpoint.
  NanCheck(const TrainerOptions& options, const ImageShape& images,
           const TrainedReplica& replica,
           std::function<std::string()> newest_checkpoint);

  // The run goes on from a step in an epoch of `steps_per_epoch`.
  void begin(std::int64_t steps_per_epoch) { steps_ = steps_per_epoch; }

  // Call it for each step. Not a collective.
  void add(const FinishedStep& step);

  // At a report: throws where losses or skipped steps end the run. A
  // collective.
  void check_losses();

  // Before a checkpoint and at the end of an epoch, when all losses are known:
  // throws where the run ends. Returns whether the state is fit to be saved:
  // the last loss, unless its step was skipped, the weights, the buffers, what
  // the model computes and the optimizer's state are finite on every rank. A
  // collective.
  bool check_state();

 private:
  // The end of an advice; `checkpoint` may be empty.
  std::string way_back(const std::string& checkpoint) const;
  [[noreturn]] void stop(const std::string& problem) const;
  std::string position_of(std::int64_t number) const;

  const TrainerOptions& options_;
  const OnNan on_nan_;
  const ImageShape images_;
  std::shared_ptr<Classifier> model_;
  const torch::optim::Optimizer& optimizer_;
  std::shared_ptr<ProcessGroup> group_;
  std::function<std::string()> newest_checkpoint_;
  static constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t steps_ = 1;          // per epoch
  std::int64_t first_bad_ = kNone;  // the first loss that ends the run
  std::int64_t last_ = 0;           // the last step
  bool last_is_bad_ = false;
  std::int64_t skipped_in_row_ = 0;
};

}  // namespace lockstep
