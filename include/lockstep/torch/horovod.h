// Horovod's interface, for programs that come from there:
//
//     namespace hvd = lockstep::horovod;
//
// tensor_collectives.h has the collectives on tensors.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/comm/groups.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/torch/gradient_scaler.h"

namespace lockstep {
class ReplicaWatch;
}  // namespace lockstep

namespace lockstep::horovod {

// Horovod's way into data-parallel training: an optimizer whose steps see the
// gradients of all ranks. The model stays as it is.
//
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

class PassesPerStep;

// What travels in the place of gradients, which are widened again after it: see
// comm_hooks.h.
enum class Compression { kNone, kFp16, kBf16 };

// An op of DistributedOptimizer, which combines the ranks' steps: see adasum()
// below.
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

  // A parameter that `optimizer` has several times stays in its first place.
  static void drop_repeated_parameters(torch::optim::Optimizer& optimizer);

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
    StepGradients::drop_repeated_parameters(optimizer);
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

// The functions around that optimizer.
//
// Threads: single-threaded; what takes a group is called by all of its ranks.
// Errors:  InvalidArgument before init(); what ProcessGroup's operations throw.
// Source:  horovod.torch.

// The default group's beginning and end. Where there is a default group already
// init() leaves it as it is, whatever `options` say.
void init(const InitOptions& options = {});
void shutdown();

// Of the default group.
int rank();
int size();
// This rank among those of its host, and how many those are, as the launcher
// has said; InvalidArgument where there are several ranks and it has not.
int local_rank();
int local_size();

// From now on ranks of `group` may join(), and every operation of this header
// and of DistributedOptimizer is announced to the other ranks before it begins,
// by a small all-gather, one for each reduced pass or call. Every rank calls
// this at the same point. Within one backward pass the ranks then reduce in one
// order, and DistributedDataParallel refuses to reduce in this group.
void allow_join(std::shared_ptr<ProcessGroup> group = {});

// To be called by a rank that has no data left, outside backward passes. Until
// every rank has called it, this rank takes part with zeros in the others'
// allreduce() and allreduce_() of sums and averages and in what their
// DistributedOptimizers reduce. Averages divide by the number of all ranks. Its
// own .grad is reset, and its parameters stay as they are: broadcast those of
// the rank that is returned. Optimizers stay alive meanwhile.
//
// Returns the last rank that joined; where several did after the same
// operation, the highest of those. Afterwards ranks may have data again.
//
// Errors: InvalidArgument on this rank where the group does not allow it. On
// every rank, in join() too, and none has joined any longer: InvalidArgument
// naming the ranks that had where another operation of this header is called or
// a DistributedOptimizer is made; Mismatch where ranks call different
// operations, or one of the group's own. Timeout where the other ranks call
// nothing for as long as the group's.
int join(std::shared_ptr<ProcessGroup> group = {});

// Gives every rank `root`'s values. Tensors are paired by their names, whatever
// their order on a rank; Mismatch on every rank where names, types or
// shapes differ. The group is default_group() when empty, here and below.
void broadcast_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& parameters, int root = 0,
    std::shared_ptr<ProcessGroup> group = {});
// The same of a module's parameters and buffers.
void broadcast_parameters(const torch::nn::Module& module, int root = 0,
                          std::shared_ptr<ProcessGroup> group = {});

// A new tensor: all ranks' `tensor` combined. Whole numbers have no average of
// their type, which is an InvalidArgument.
//
// Autograd: where `tensor` requires a gradient, that of the result is combined
// by the same operation, so every rank runs the backward pass. Only a sum and
// an average have a gradient: that of another operation is an InvalidArgument.
at::Tensor allreduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kAverage,
                     std::shared_ptr<ProcessGroup> group = {});
// The same in place, as a change that autograd does not record; returns
// `tensor`.
// NOLINTNEXTLINE(readability-identifier-naming): torch's name
const at::Tensor& allreduce_(const at::Tensor& tensor,
                             ReduceOp op = ReduceOp::kAverage,
                             std::shared_ptr<ProcessGroup> group = {});

// A new tensor: all ranks' floating-point `tensor` combined two by two, in a
// tree over the ranks. Two that are orthogonal are added, two that are parallel
// averaged: a (1 - ab / 2aa) + b (1 - ab / 2bb). Of 1, 2, 4, 8, … ranks; others
// are an InvalidArgument. Rank 0 computes in float64 and needs memory for all
// ranks' tensors. It is no part of autograd's graph.
at::Tensor adasum(const at::Tensor& tensor,
                  std::shared_ptr<ProcessGroup> group = {});

// All ranks' tensors one after the other along the first dimension, of which
// each rank has a size of its own, maybe 0. Mismatch on every rank where types
// or other sizes differ; InvalidArgument for a tensor without a dimension.
//
// Autograd: the gradient of `tensor` is that of its rows of the result, added
// up over the ranks, so every rank runs the backward pass.
at::Tensor allgather(const at::Tensor& tensor,
                     std::shared_ptr<ProcessGroup> group = {});

// Gives every rank what rank `root`'s optimizer has: its options, such as the
// learning rate, and its state. They are of one class, of parameters of the
// same shapes in the same groups.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root = 0,
                               std::shared_ptr<ProcessGroup> group = {});

// Rank `root`'s `object`: numbers, strings, tensors, lists and dictionaries of
// them. They travel as a pickle of LibTorch's, which is read without running
// code of its own; a view travels as its own elements alone. Elsewhere `object`
// does not matter.
c10::IValue broadcast_object(const c10::IValue& object, int root = 0,
                             std::shared_ptr<ProcessGroup> group = {});

// Every rank's `object`, in the order of ranks.
std::vector<c10::IValue> allgather_object(
    const c10::IValue& object, std::shared_ptr<ProcessGroup> group = {});

}  // namespace lockstep::horovod
