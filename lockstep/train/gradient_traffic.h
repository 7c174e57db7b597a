// What ranks send each other about gradients in a training run: by a hook's
// name, that hook with what a run makes of it.
//
// Threads: belongs to one thread at a time; every rank of the model's group
//          does the same with its own.
// Errors:  InvalidArgument for an unknown name; what collectives throw.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/torch/compression.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/model_averager.h"
#include "lockstep/torch/power_sgd_hook.h"
#include "lockstep/train/models.h"

namespace lockstep {

// "none"; "fp16" and "bf16", whose gradients travel with 16 bits; "power-sgd",
// which sends thin matrices after a fifth of the run; "post-local-sgd", which
// after a fifth of the run sends no gradients, and averages models every fourth
// step.
std::span<const std::string_view> known_hooks();

class GradientTraffic {
 public:
  // `steps` are those of the whole run. `model` must outlive the object.
  GradientTraffic(std::string_view hook,
                  DistributedDataParallel<Classifier>& model,
                  std::int64_t steps);

  // After each step of the optimizer.
  void step_done();

  // Makes the model the same on all ranks, where it is not.
  void settle();

  // Passes that PowerSGD has counted: to be set by whoever goes on from a
  // checkpoint. What it remembers of gradients is found anew.
  std::int64_t passes() const;
  void set_passes(std::int64_t passes);

  // What compression has come to, in words; nothing without it.
  std::optional<std::string> summary() const;

 private:
  DistributedDataParallel<Classifier>& model_;
  std::shared_ptr<CompressingHook> compression_;
  std::shared_ptr<PowerSgdHook> power_sgd_;  // the same, where it is this one
  std::optional<PeriodicModelAverager> averager_;
};

}  // namespace lockstep
