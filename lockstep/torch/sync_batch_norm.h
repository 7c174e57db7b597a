// Batch normalization whose mean and variance are those of all ranks' samples
// together: a small batch a rank then trains as the whole batch would.
//
//     struct Net : torch::nn::Module {
//       …
//       lockstep::BatchNorm norm{nullptr};  // in the place of BatchNorm2d
//     };
//     Net net;
//     lockstep::convert_sync_batch_norm(net);
//     auto model = lockstep::DistributedDataParallel(net);
//
// LibTorch's BatchNorm1d, 2d and 3d call their forward() directly, so that what
// holds one goes on calling it whatever else is registered under its name. So
// there are two ways: declare members as BatchNorm, which is as LibTorch's
// until it is converted; or have LibTorch's as steps of a Sequential, where
// they can be replaced.
//
// In training each layer exchanges, in its forward pass, a mean, a variance and
// a count, and in its backward pass two sums a feature. Ranks may bring batches
// of different lengths, empty ones too. In evaluation, and in a group of one,
// it is LibTorch's batch normalization. Names in a state dict are the same.
//
// Gradients of weight and bias are this rank's own, as everywhere, for
// DistributedDataParallel to average. Every rank must run the same passes, also
// within no_sync(); join() cannot stand in for a rank that is out of data.
//
// Threads: as LibTorch's modules; passes of the ranks of a group run together.
// Errors:  InvalidArgument for inputs that are no batch, on every rank when all
//          samples together are fewer than two; from backward() with
//          create_graph. What ProcessGroup's operations throw.
// Source:  torch.nn.SyncBatchNorm.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Whose samples mean and variance are taken over in training.
enum class BatchStatistics { kOfRank, kOfGroup };

// What a layer of batch normalization has in a state dict; undefined where its
// options leave it out.
struct BatchNormTensors {
  at::Tensor weight, bias;
  at::Tensor running_mean, running_var, num_batches_tracked;
};

class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // The layer takes its statistics over `group`, or over default_group() at its
  // first pass in training. Passes of a rank that start buckets of gradients in
  // another order than its peers' need a group of their own here; see
  // convert_sync_batch_norm.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_options,
                             std::shared_ptr<ProcessGroup> group = nullptr);
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_options,
                    BatchStatistics statistics);
  // In the place of a layer with these options and tensors, which it shares.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_options,
                    const BatchNormTensors& tensors,
                    std::shared_ptr<ProcessGroup> group);

  // Of samples x num_features, or that with one, two or three more dimensions.
  at::Tensor forward(const at::Tensor& input);

  // From now on statistics are the group's.
  void synchronize(std::shared_ptr<ProcessGroup> group);
  BatchStatistics statistics() const { return statistics_; }
  // Null for a rank's own statistics, and before a first pass over
  // default_group().
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // As those of torch::nn::BatchNorm2d.
  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;
  at::Tensor running_mean, running_var, num_batches_tracked;

 private:
  void hold(const BatchNormTensors& tensors);
  void check(const at::Tensor& input) const;
  // Counts the batch; returns its weight in the running statistics.
  double count_batch();
  bool synchronizes_now();
  at::Tensor synchronized(const at::Tensor& input, double momentum);

  BatchStatistics statistics_;
  std::shared_ptr<ProcessGroup> group_;
};

TORCH_MODULE(SyncBatchNorm);

// The same layer, plain until convert_sync_batch_norm() finds it: what to
// declare in the place of torch::nn::BatchNorm1d, 2d and 3d.
class BatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  // Implicit as those of LibTorch's holders.
  BatchNorm(std::nullptr_t) : ModuleHolder(nullptr) {}  // NOLINT
  BatchNorm(std::shared_ptr<SyncBatchNormImpl> module)  // NOLINT
      : ModuleHolder(std::move(module)) {}
  explicit BatchNorm(const torch::nn::BatchNormOptions& options)
      : ModuleHolder(std::make_shared<SyncBatchNormImpl>(
            options, BatchStatistics::kOfRank)) {}
};

// Makes every batch normalization in `module` take its statistics over the
// ranks of `group` (default_group() when empty), and returns how many there
// are. To be called by every rank, before the module is wrapped. Parameters and
// buffers stay the tensors that they were, so that an optimizer may have them
// already.
//
// The layers get a group of their own of the same ranks, so that what they
// exchange during a backward pass and the buckets of gradients need no common
// order.
//
// InvalidArgument, and nothing is changed, when a BatchNorm of LibTorch's is
// held by anything but a Sequential.
int convert_sync_batch_norm(torch::nn::Module& module,
                            std::shared_ptr<ProcessGroup> group = nullptr);

// Aborts the groups over which layers in `module` take their statistics, so
// that nobody waits in them for a rank that has left its pass. Never blocks.
// DistributedDataParallel, where it averages gradients, does so when a backward
// pass throws after a gradient has arrived; what is thrown elsewhere, as in a
// forward pass, is for the caller to tell.
void abort_groups_of_batch_norms(const torch::nn::Module& module,
                                 const std::string& reason) noexcept;

}  // namespace lockstep
