// TensorFlow's interface, tf.distribute, for programs that come from there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/distributed_data_parallel.h"

namespace lockstep::strategies {

// What a strategy's replicas have: one value each (a model, an optimizer, a
// batch, a loss), a context, and a side of the optimizer.
//
// Threads: each replica's value belongs to the replica's thread while run()
//          runs.
// Source:  tf.distribute.ReplicaContext and DistributedValues.

// The replica on which a step runs.
struct ReplicaContext {
  int local_replica = 0;  // among those of this process
  at::Device device = at::kCPU;
  // All replicas as ranks: its rank is the replica's number.
  std::shared_ptr<ProcessGroup> group{};

  int replica_id_in_sync_group() const { return group->rank(); }
  int num_replicas_in_sync() const { return group->size(); }
};

// A handle: copies refer to the same values.
template <class Value>
class PerReplica {
 public:
  // One for each local replica, in their order.
  explicit PerReplica(std::vector<std::shared_ptr<Value>> values)
      : values_(std::move(values)) {}

  Value& operator[](const ReplicaContext& here) const {
    return *values_[static_cast<std::size_t>(here.local_replica)];
  }
  // For use outside of run(): the value of this process's `local_replica`-th
  // replica, by default the first, which is the one to save and to evaluate.
  Value& local(int local_replica = 0) const {
    return *values_[static_cast<std::size_t>(local_replica)];
  }
  std::size_t size() const { return values_.size(); }

 private:
  std::vector<std::shared_ptr<Value>> values_;
};

// One replica's side of an optimizer that a strategy has made.
//
// Threads: it belongs to its replica's thread while run() runs.
// Errors:  those of the optimizer and of the group's operations.
class StrategyOptimizer {
 public:
  // With central variables, `central` is the group of the replicas, whose first
  // one updates them, and `optimizer` is null on the others. Otherwise
  // `central` is null, and each replica updates its own.
  StrategyOptimizer(std::vector<at::Tensor> parameters,
                    std::unique_ptr<torch::optim::Optimizer> optimizer,
                    std::shared_ptr<ProcessGroup> central)
      : parameters_(std::move(parameters)),
        optimizer_(std::move(optimizer)),
        central_(std::move(central)) {}

  // Every replica calls it. Updates this replica's variables, or the central
  // ones; every replica sees the result when it returns.
  void step();

  // Drops this replica's gradients.
  void zero_grad();

  // The optimizer that steps, for its state and learning rate; null where
  // another replica has it.
  torch::optim::Optimizer* optimizer() const { return optimizer_.get(); }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<ProcessGroup> central_;
};

// One pass over a dataset for the replicas of a strategy.
//
// Each global batch is divided evenly: every replica gets every n-th sample of
// the epoch's sequence, which is PyTorch's. So in each step the n replicas
// together see the samples that one replica with n times the batch would see.
//
// Threads: single-threaded; each batch belongs to its replica's thread.
// Errors:  InvalidArgument when a global batch cannot be divided; those of
//          Loader.

struct DistributedDatasetOptions {
  // Samples per step of all replicas together.
  std::int64_t global_batch = 64;
  bool shuffle = true;
  // The same on every worker.
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  // Drops a last batch that is smaller.
  bool drop_remainder = false;
  // Pads the last batch to the same size on all replicas with samples from the
  // beginning of the pass, which then occur twice, as PyTorch's sampler does.
  // Without it each sample is in the pass once, as in TensorFlow: the parts of
  // the last batch differ by at most one sample, and a part may have 0. The
  // program then divides the loss by samples().
  bool pad = true;
};

class DistributedDataset {
 public:
  DistributedDataset(const std::vector<ReplicaContext>& replicas,
                     const SampleSource& source,
                     const DistributedDatasetOptions& options);

  // The next global batch, or nothing when the pass is over; every worker gets
  // the same number. Each replica's part is on its device; a GPU may still be
  // copying it, but does so before later work of the current stream. Waits for
  // a batch at most as long as the timeout of the replicas' collectives. After
  // a Timeout the next call resumes there.
  std::optional<PerReplica<BatchTensors>> next();
  std::optional<PerReplica<BatchTensors>> next(Deadline deadline);

  // The number of global batches in the whole pass.
  std::int64_t batch_count() const { return batch_count_; }

  // The number of samples of all replicas together in the global batch that
  // next() returned last, the same on every worker: the `global_batch_size` of
  // Strategy::compute_average_loss(). 0 before the first.
  std::int64_t samples() const;

 private:
  BatchTensors batch_without_samples(at::Device device) const;

  std::int64_t global_batch_;
  std::int64_t samples_in_pass_;  // of all replicas, repeated ones included
  std::int64_t batch_count_;
  std::int64_t returned_ = 0;  // global batches
  ImageShape shape_;
  std::vector<DeviceBatches> batches_;  // by local replica
  std::chrono::nanoseconds timeout_;
  std::vector<std::shared_ptr<BatchTensors>> fetched_;  // of the next one
  std::vector<std::unique_ptr<Loader>> loaders_;        // by local replica
};

// The tf.distribute frontend: a strategy determines how many replicas of a
// model exist and where; the user writes a step once, for one replica.
//
//     lockstep::MirroredStrategy strategy({.devices = {at::kCPU, at::kCPU}});
//     auto net = strategy.create([] { return std::make_shared<Net>(); });
//     auto optimizer = strategy.create_optimizer(net, [](auto parameters) {
//       return torch::optim::SGD(parameters, 0.01);
//     });
//     const auto losses = strategy.run([&](const ReplicaContext& here) {
//       const auto& [images, labels] = batch[here];
//       optimizer[here].zero_grad();
//       at::Tensor loss = strategy.compute_average_loss(
//           loss_of_each(net[here](images), labels));
//       loss.backward();  // adds up the gradients of all replicas
//       optimizer[here].step();
//       return loss.detach();
//     });
//     strategy.reduce(ReduceOp::kSum, losses);  // of the global batch
//
// Python's `scope` watches the creation of variables; here create() calls a
// factory once per replica, one after the other, and copies the first model's
// values to all. It moves a module to its replica's GPU, if any, which is the
// current device within run(). Gradients are added up, not averaged:
// compute_average_loss() divides a loss by the size of the global batch. Call
// zero_grad() before each backward(): earlier contents of .grad would count
// once per replica.
//
// Threads: a strategy belongs to one thread; replicas run in others. It must
//          outlive its creations. Under MultiWorkerMirroredStrategy every
//          worker makes the same calls.
// Errors:  InvalidArgument for options that cannot work. When the function
//          given to run() throws on a replica, the group is aborted, and run()
//          throws the same exception when all replicas of this process have
//          ended; the strategy is unusable after that.
// Source:  tf.distribute.

class ReplicaThreads;

struct AverageLossOptions {
  // Samples of all replicas together. The default assumes the same number on
  // each replica: set it where a batch may be divided unevenly, for example to
  // DistributedDataset::samples().
  std::optional<std::int64_t> global_batch_size{};
  // Factors for the losses before the sum: of the losses' shape, of that
  // without its last dimension, or one number. The sum is still divided by the
  // number of samples, not by the sum of weights.
  at::Tensor sample_weight{};
};

struct CreateOptions {
  // Of a model: see DistributedDataParallelOptions. The replicas have buffers
  // of their own, so that only parameters are compared.
  std::int64_t compare_replicas_every = 1000;
};

class Strategy {
 public:
  virtual ~Strategy();

  // The number of replicas in all processes together.
  int num_replicas_in_sync() const { return group_of_first().size(); }
  // The replicas of this process, as run() passes them.
  const std::vector<ReplicaContext>& local_replicas() const {
    return contexts_;
  }

  // One result of `factory` per replica. A module, a pointer to one or a holder
  // is wrapped in a DistributedDataParallel: net[here](input) is a forward pass
  // of the replica, *net[here] the module. Other values stay unchanged.
  // `factory` takes nothing, or a const ReplicaContext&.
  template <class Factory>
  auto create(const Factory& factory, const CreateOptions& options = {});

  // An optimizer for each replica of `model`; `factory` makes it from a list of
  // parameters.
  template <class Model, class Factory>
  PerReplica<StrategyOptimizer> create_optimizer(const PerReplica<Model>& model,
                                                 const Factory& factory);

  // Replaces every replica's floating-point buffers, such as the running
  // statistics of BatchNorm, by their mean over all replicas, and other buffers
  // by the first replica's. Each replica gathers its own in training. In
  // TensorFlow such variables are SyncOnRead with VariableAggregation.MEAN, and
  // a read outside of run() gives that mean. Call it before saving and before
  // an evaluation. It does not change further training: the mean of running
  // averages is the running average of means.
  template <class Module>
  void average_buffers(
      const PerReplica<DistributedDataParallel<Module>>& model);

  // One pass over a dataset, global batch by global batch, each divided over
  // the replicas. `source` must outlive it.
  DistributedDataset distribute_dataset(
      const SampleSource& source,
      const DistributedDatasetOptions& options) const {
    return DistributedDataset(contexts_, source, options);
  }

  // Calls step(here) for each replica of this process, concurrently, and
  // returns the results as PerReplica, or nothing.
  template <class Step>
  auto run(const Step& step);

  // The sum (kSum) or mean (kAverage) over all replicas. Every worker gets the
  // result. With an `axis`, that dimension of each value is reduced too,
  // usually the samples of a batch: replicas may have different sizes there,
  // and each element has the same weight in the mean, which is NaN if no
  // replica has an element. A negative axis counts from the last dimension.
  // Values of 16 bits are added in float32. InvalidArgument for an axis that a
  // value does not have, and where values of one process differ in type or
  // shape; workers compare types, of which those of 16 bits count as float32,
  // and numbers of elements, not shapes.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& values,
                    std::optional<std::int64_t> axis = {}) const;

  // All replicas' values, joined along `axis` in the order of replicas, on the
  // first local replica's device. A collective of all workers; each gets the
  // result. Shapes may differ only along `axis`: InvalidArgument on every
  // worker when other dimensions or types differ, and for an axis that some
  // value does not have.
  at::Tensor gather(const PerReplica<at::Tensor>& values,
                    std::int64_t axis) const;

  // The sum of a replica's losses, whose first dimension is the samples,
  // divided by the size of the global batch. InvalidArgument for a loss without
  // dimensions, since it is usually a mean, which would be divided twice, and
  // for weights whose shape does not fit.
  at::Tensor compute_average_loss(const at::Tensor& losses,
                                  const AverageLossOptions& options = {}) const;

 protected:
  enum class Variables { kMirrored, kCentral };

  // Replicas as threads of this process.
  Strategy(std::vector<at::Device> devices, Variables variables,
           std::optional<std::chrono::nanoseconds> timeout);
  // This process is one replica, on `device`.
  Strategy(std::shared_ptr<ProcessGroup> group, at::Device device);

 private:
  const ProcessGroup& group_of_first() const { return *contexts_[0].group; }
  void run_on_each(const std::function<void(const ReplicaContext&)>& body);
  // Makes all replicas' parameters share the first one's memory, where
  // variables are central and on CPUs.
  void centralize(const std::vector<std::vector<at::Tensor>>& parameters) const;

  template <class Value>
  using Slots = std::vector<std::shared_ptr<Value>>;

  Variables variables_ = Variables::kMirrored;
  std::unique_ptr<ReplicaThreads> threads_;  // null with one replica
  std::vector<ReplicaContext> contexts_;
};

struct StrategyOptions {
  // One replica on each: GPUs, each once, or the CPU, any number of times. When
  // empty: all GPUs that LibTorch sees, or without a GPU one slot of the CPU
  // per compute thread.
  std::vector<at::Device> devices{};
  // As in InitOptions.
  std::optional<std::chrono::nanoseconds> timeout{};
};

// One process; each replica has variables of its own, kept equal.
class MirroredStrategy : public Strategy {
 public:
  explicit MirroredStrategy(StrategyOptions options = {})
      : Strategy(std::move(options.devices), Variables::kMirrored,
                 options.timeout) {}
};

// One process; variables, and the optimizer with its state, are in one place,
// and all devices compute. With one device that device does both.
//
// On CPUs all replicas read the same memory. On several GPUs the place is the
// first one (TensorFlow's is the memory of the host); the others compute with
// copies, which step() renews. A program that changes variables in another way,
// for example from a checkpoint, must change those of every replica.
class CentralStorageStrategy : public Strategy {
 public:
  explicit CentralStorageStrategy(StrategyOptions options = {})
      : Strategy(std::move(options.devices), Variables::kCentral,
                 options.timeout) {}
};

struct MultiWorkerStrategyOptions {
  // As in InitOptions.
  std::optional<std::chrono::nanoseconds> timeout{};
  // This worker's device; two workers must not share a GPU.
  at::Device device = at::kCPU;
};

// One replica in each of several processes. If TF_CONFIG is set, it lists them,
// as TensorFlow's: {"cluster": {"worker": ["a:2222", "b:2222"]}, "task":
// {"type": "worker", "index": 1}}; they meet at the first worker's address.
// Otherwise the group is default_group(), or the one that init_process_group()
// makes from the environment.
class MultiWorkerMirroredStrategy : public Strategy {
 public:
  explicit MultiWorkerMirroredStrategy(
      const MultiWorkerStrategyOptions& options = {});
  // For workers that have a group already.
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<ProcessGroup> workers,
                                       at::Device device = at::kCPU)
      : Strategy(std::move(workers), device) {}
};

// The group of the workers, joined as MultiWorkerMirroredStrategy's constructor
// joins it: default_group() after that. InvalidArgument for a TF_CONFIG that is
// wrong, or contradicts the environment or the existing group.
std::shared_ptr<ProcessGroup> group_of_workers(
    std::optional<std::chrono::nanoseconds> timeout = {});

namespace strategy_internal {

template <class Value>
struct ModuleIn : std::false_type {};
template <std::derived_from<torch::nn::Module> Module>
struct ModuleIn<Module> : std::true_type {
  using Type = Module;
};
template <std::derived_from<torch::nn::Module> Module>
struct ModuleIn<std::shared_ptr<Module>> : std::true_type {
  using Type = Module;
};
template <class Holder>
requires std::derived_from<Holder,
                           torch::nn::ModuleHolder<typename Holder::Impl>>
struct ModuleIn<Holder> : std::true_type {
  using Type = typename Holder::Impl;
};

// Null for an empty pointer or holder.
template <class Made>
torch::nn::Module* module_in(Made& made) {
  if constexpr (std::derived_from<Made, torch::nn::Module>)
    return &made;
  else if constexpr (requires { made.is_empty(); })
    return made.is_empty() ? nullptr : made.get();
  else
    return made.get();
}

// Does nothing where `device` is the CPU.
void move_to_gpu(torch::nn::Module* module, at::Device device);

void average_buffers(ProcessGroup& group,
                     const std::vector<at::Tensor>& buffers);

template <class Factory>
auto make(const Factory& factory, const ReplicaContext& here) {
  if constexpr (std::is_invocable_v<const Factory&, const ReplicaContext&>)
    return factory(here);
  else
    return factory();
}

}  // namespace strategy_internal

template <class Factory>
auto Strategy::create(const Factory& factory, const CreateOptions& options) {
  using Made = decltype(strategy_internal::make(factory, contexts_[0]));
  using Module = strategy_internal::ModuleIn<Made>;
  if constexpr (Module::value) {
    using Model = DistributedDataParallel<typename Module::Type>;
    std::vector<Made> modules;
    for (const ReplicaContext& here : contexts_)
      modules.push_back(strategy_internal::make(factory, here));
    Slots<Model> models(contexts_.size());
    run_on_each([&](const ReplicaContext& here) {
      const auto index = static_cast<std::size_t>(here.local_replica);
      strategy_internal::move_to_gpu(
          strategy_internal::module_in(modules[index]), here.device);
      models[index] = std::make_shared<Model>(
          std::move(modules[index]),
          DistributedDataParallelOptions{
              .group = here.group,
              .broadcast_buffers = false,
              .find_unused_parameters = true,
              .op = ReduceOp::kSum,
              .compare_replicas_every = options.compare_replicas_every});
    });
    std::vector<std::vector<at::Tensor>> parameters;
    for (const auto& model : models) parameters.push_back(model->parameters());
    centralize(parameters);
    return PerReplica<Model>(std::move(models));
  } else {
    Slots<Made> values;
    for (const ReplicaContext& here : contexts_)
      values.push_back(
          std::make_shared<Made>(strategy_internal::make(factory, here)));
    return PerReplica<Made>(std::move(values));
  }
}

template <class Model, class Factory>
PerReplica<StrategyOptimizer> Strategy::create_optimizer(
    const PerReplica<Model>& model, const Factory& factory) {
  Slots<StrategyOptimizer> optimizers(contexts_.size());
  run_on_each([&](const ReplicaContext& here) {
    using Optimizer = decltype(factory(std::vector<at::Tensor>()));
    const auto parameters = model[here].parameters();
    const bool steps =
        variables_ == Variables::kMirrored || here.local_replica == 0;
    optimizers[static_cast<std::size_t>(here.local_replica)] =
        std::make_shared<StrategyOptimizer>(
            parameters,
            steps ? std::make_unique<Optimizer>(factory(parameters)) : nullptr,
            variables_ == Variables::kCentral ? here.group : nullptr);
  });
  return PerReplica<StrategyOptimizer>(std::move(optimizers));
}

template <class Module>
void Strategy::average_buffers(
    const PerReplica<DistributedDataParallel<Module>>& model) {
  run_on_each([&](const ReplicaContext& here) {
    strategy_internal::average_buffers(*here.group, model[here].buffers());
  });
}

template <class Step>
auto Strategy::run(const Step& step) {
  using Result = std::invoke_result_t<const Step&, const ReplicaContext&>;
  if constexpr (std::is_void_v<Result>) {
    run_on_each(step);
  } else {
    Slots<Result> results(contexts_.size());
    run_on_each([&](const ReplicaContext& here) {
      results[static_cast<std::size_t>(here.local_replica)] =
          std::make_shared<Result>(step(here));
    });
    return PerReplica<Result>(std::move(results));
  }
}

}  // namespace lockstep::strategies
