// Horovod's way into data-parallel training: an optimizer whose steps see the
// gradients of all ranks. The model stays as it is.
//
//     namespace hvd = lockstep;
//     hvd::init();
//     auto optimizer = hvd::DistributedOptimizer(
//         torch::optim::SGD(net->parameters(), 0.01 * hvd::size()),
//         net->named_parameters());
//     hvd::broadcast_parameters(*net);
//     hvd::broadcast_optimizer_state(optimizer);
//
// It is the optimizer that it was made of, of that class, so that learning-rate
// schedulers and what else takes one work with it. Gradients are reduced while
// backward() runs and lie in .grad when it returns, where Horovod has them
// after synchronize(): clipping needs no synchronize() before it, nor
// skip_synchronize() after it, which does not exist here.
//
// Every rank makes it at the same point of the program, of parameters of the
// same names, types and shapes, with the same options, and makes the same
// number of steps. Gradients are paired by the parameters' names; the order in
// which a rank has them does not matter. Passes may use different parameters on
// each rank: where a gradient is missing it counts as zero. A parameter that no
// rank used keeps the .grad that it had, so that the optimizer leaves it out if
// it is undefined; Horovod gives it zeros.
//
// With op = Adasum{} gradients stay a rank's own. step() is then a step of each
// rank's own optimizer, and what it has changed of each parameter is combined
// by Adasum, so that all ranks have the same parameters again. Their states
// differ. synchronize() has nothing to do, passes are not counted, and clipping
// is of a rank's own gradients. No test combines it with a GradientScaler. In a
// group of one it is as kAverage.
//
// Threads: single-threaded. It may be moved, but not during a pass.
// Errors:  when it is made: Mismatch on every rank when parameters or options
//          differ; InvalidArgument for parameters without a name, a parameter
//          that cannot be reduced or is reduced already, and options that
//          cannot work. From backward() and step(): as
//          DistributedDataParallel's; InvalidArgument for more passes than a
//          step takes, and where other parameters are to be trained than when
//          it was made. With Adasum, a rank whose own step throws aborts the
//          group.
// Source:  horovod.torch.DistributedOptimizer.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/module_tensors.h"

namespace lockstep {

class PassesPerStep;
class ReplicaWatch;

// What travels in the place of gradients, which are widened again after it: see
// compress_hook.h.
enum class Compression { kNone, kFp16, kBf16 };

// An op of DistributedOptimizer, which combines the ranks' steps: see adasum()
// in horovod.h.
struct Adasum {
  bool operator==(const Adasum&) const = default;
};
using StepOp = std::variant<ReduceOp, Adasum>;

struct DistributedOptimizerOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  Compression compression = Compression::kNone;
  // What a step sees of the ranks' gradients: kAverage, or kSum. Or Adasum{}:
  // what becomes of the ranks' steps, of 2, 4, 8, … ranks. `compression` is
  // then of what a step has changed.
  StepOp op = ReduceOp::kAverage;
  // Backward passes before each step, whose gradients add up and travel once.
  // They are not divided by this number. step() after fewer of them takes what
  // there is. With kAverage they count for each parameter, as in Horovod: after
  // passes in which not every rank has used all parameters, further passes may
  // bring the others. Those stay this rank's own until synchronize() or step().
  int backward_passes_per_step = 1;
  // Of an average: gradients are divided by this number before ranks add them,
  // and by size() / this number after it, so that sums of 16 bits neither
  // overflow nor vanish. Above 0; with kAverage alone.
  double gradient_predivide_factor = 1;
  // Whether sparse gradients are made dense before they are reduced; without it
  // they are reduced as indices and values, uncompressed from the second pass
  // that brings one on, and stay sparse: see DistributedDataParallelOptions.
  bool sparse_as_dense = false;
  // Every so many steps the ranks compare hashes of the parameters, and throw
  // Mismatch, in backward() or step(), if they differ: see
  // DistributedDataParallelOptions.
  std::int64_t compare_replicas_every = 1000;
};

// What DistributedOptimizer does that does not depend on its class.
class StepGradients {
 public:
  StepGradients(const torch::optim::Optimizer& optimizer,
                const torch::OrderedDict<std::string, at::Tensor>& names,
                const DistributedOptimizerOptions& options);

  // To be called before a step of `optimizer` reads gradients: makes them what
  // it is to read. InvalidArgument where it trains other parameters by now.
  void synchronize(const torch::optim::Optimizer& optimizer);
  bool are_synchronized() const;
  // A step was made, or gradients were dropped.
  void begin_anew();

  // Whether it combines what each rank's own step changes, by Adasum.
  bool combines_steps() const { return combines_steps_; }
  // Before and after a step of this rank's own, and where it has thrown.
  void begin_own_step(const torch::optim::Optimizer& optimizer);
  void combine_steps();
  void abandon_step() noexcept;

 private:
  void check_trained(const torch::optim::Optimizer& optimizer) const;
  [[noreturn]] void refuse_change(
      const std::vector<at::Tensor>& trained_now) const;
  std::string name_of(const at::Tensor& parameter) const;

  std::shared_ptr<ProcessGroup> group_;
  bool combines_steps_;
  Compression compression_;
  std::shared_ptr<PassesPerStep> passes_;
  std::shared_ptr<ReplicaWatch> watch_;
  torch::OrderedDict<std::string, at::Tensor> names_;
  std::vector<at::Tensor> trained_;  // when it was made, as the optimizer's
  // Where it combines steps: these in the order of names, and their values
  // before a step.
  std::vector<at::Tensor> in_order_, before_;
};

template <typename Optimizer>
class DistributedOptimizer final : public Optimizer,
                                   public SynchronizesGradients {
 public:
  // Takes over `optimizer`, the parameters of which that require a gradient are
  // all in `named_parameters`; others that are there do not matter. A parameter
  // that the optimizer has twice, as tied weights, it has once from here on.
  DistributedOptimizer(
      Optimizer optimizer,
      const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
      const DistributedOptimizerOptions& options = {})
      : Optimizer(without_repeated_parameters(std::move(optimizer))),
        gradients_(*this, named_parameters, options) {}

  at::Tensor step(
      torch::optim::Optimizer::LossClosure closure = nullptr) override {
    if (gradients_.combines_steps()) return combined_step(std::move(closure));
    if (closure)
      closure = [this, compute = std::move(closure)] {
        at::Tensor loss = compute();
        synchronize();
        return loss;
      };
    else
      synchronize();
    const at::Tensor loss = Optimizer::step(std::move(closure));
    gradients_.begin_anew();
    return loss;
  }

  // Makes .grad what the next step reads, where the passes so far have not, and
  // ends their count: the next pass is the first of a step, also where this one
  // is left out, as by a GradientScaler, which calls it. A caller needs it that
  // looks at gradients after fewer passes than a step takes, or after further
  // ones. What scale_gradients() of a fused optimizer has said holds for it.
  void synchronize() override {
    if constexpr (std::derived_from<Optimizer, ScalesGradients>) {
      if (!gradients_.are_synchronized()) {
        const double factor = this->take_scaling();
        gradients_.synchronize(*this);
        return this->scale_gradients(factor);
      }
    }
    gradients_.synchronize(*this);
  }

  // That of a fused optimizer, after synchronize(): the ranks' own gradients
  // have a norm each.
  double clip_grad_norm(double max_norm, double norm_type = 2) requires
      std::derived_from<Optimizer, ScalesGradients> {
    synchronize();
    return Optimizer::clip_grad_norm(max_norm, norm_type);
  }

  // As LibTorch's; drops what passes before it have brought. That of the class
  // torch::optim::Optimizer, which is not virtual, does not: the pass after it
  // counts as one more.
  void zero_grad(bool set_to_none = true) {
    Optimizer::zero_grad(set_to_none);
    gradients_.begin_anew();
  }

 private:
  static Optimizer without_repeated_parameters(Optimizer optimizer) {
    drop_repeated_parameters(optimizer);
    return optimizer;
  }

  at::Tensor combined_step(torch::optim::Optimizer::LossClosure closure) {
    gradients_.begin_own_step(*this);
    at::Tensor loss;
    try {
      loss = Optimizer::step(std::move(closure));
      gradients_.combine_steps();
    } catch (...) {
      gradients_.abandon_step();
      throw;
    }
    return loss;
  }

  StepGradients gradients_;
};

}  // namespace lockstep
