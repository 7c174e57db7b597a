// The ranks' communication of gradients in a training run: a hook by its name,
// with the settings of the run.
//
// Threads: an object belongs to one thread at a time; every rank of the model's
//          group makes the same calls.
// Errors:  InvalidArgument for an unknown name; those of collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/trainer/model/models.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/distributed_data_parallel.h"

namespace lockstep {

// The hooks of kHooks: fp16 and bf16 send gradients with 16 bits; power-sgd
// sends thin matrices after a fifth of the run; post-local-sgd sends no
// gradients after a fifth of the run, and averages models every fourth step.
class GradientTraffic {
 public:
  // `steps` counts the whole run. `model` must outlive the object.
  GradientTraffic(std::string_view hook,
                  DistributedDataParallel<Classifier>& model,
                  std::int64_t steps);

  // Call it after each step of the optimizer.
  void step_done();

  // Makes the model the same on all ranks, where it is not.
  void settle();

  // Passes that PowerSGD has counted; a run that resumes from a checkpoint sets
  // them. PowerSGD's state of gradients is not restored.
  std::int64_t passes() const;
  void set_passes(std::int64_t passes);

  // The result of compression, as a sentence; empty without compression.
  std::optional<std::string> summary() const;

 private:
  DistributedDataParallel<Classifier>& model_;
  std::shared_ptr<CompressingHook> compression_;
  std::shared_ptr<PowerSgdHook> power_sgd_;  // the same, if PowerSGD
  std::optional<PeriodicModelAverager> averager_;
};

}  // namespace lockstep
