// Batch normalization with the mean and variance of all ranks' samples
// together: small batches per rank then train like the whole batch.
//
//     struct Net : torch::nn::Module {
//       …
//       lockstep::BatchNorm norm{nullptr};  // instead of BatchNorm2d
//     };
//     Net net;
//     lockstep::convert_sync_batch_norm(net);
//     auto model = lockstep::DistributedDataParallel(std::move(net));
//
// The holders of LibTorch's BatchNorm1d, 2d and 3d call forward() directly, so
// a holder keeps calling its own layer even when another module is registered
// under its name. So there are two ways: declare members as BatchNorm, which
// works like LibTorch's until it is converted; or use LibTorch's layers as
// steps of a Sequential, where they can be replaced.
//
// In training each layer exchanges, in its forward pass, a mean, a variance and
// a count, and in its backward pass two sums per feature. Ranks may have
// batches of different lengths, empty ones too. In evaluation, and in a group
// of one, it equals LibTorch's batch normalization. Names in a state dict are
// the same.
//
// Gradients of weight and bias are the rank's own; DistributedDataParallel
// averages them, as all gradients. Every rank must run the same passes, also
// within no_sync(); join() cannot stand in for a rank that is out of data.
//
// Threads: like LibTorch's modules; the ranks of a group run their passes
//          together.
// Errors:  InvalidArgument for inputs that are not a batch, on every rank when
//          all samples together are fewer than two, and from backward() with
//          create_graph. Those of ProcessGroup's operations.
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

// Over whose samples mean and variance are taken in training.
enum class BatchStatistics { kOfRank, kOfGroup };

// The tensors of a batch normalization layer in a state dict; undefined where
// its options omit them.
struct BatchNormTensors {
  at::Tensor weight, bias;
  at::Tensor running_mean, running_var, num_batches_tracked;
};

class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // The layer takes its statistics over `group`, or over default_group() as of
  // its first pass in training. Ranks whose passes start gradient buckets in
  // different orders need a separate group here; see convert_sync_batch_norm.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_options,
                             std::shared_ptr<ProcessGroup> group = nullptr);
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_options,
                    BatchStatistics statistics);
  // Replaces a layer with these options and tensors, and shares the tensors.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_options,
                    const BatchNormTensors& tensors,
                    std::shared_ptr<ProcessGroup> group);

  // `input` is samples x num_features, or has one, two or three more
  // dimensions.
  at::Tensor forward(const at::Tensor& input);

  // Takes statistics over `group` from now on.
  void synchronize(std::shared_ptr<ProcessGroup> group);
  BatchStatistics statistics() const { return statistics_; }
  // Null for a rank's own statistics, and before the first pass over
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

// The same layer, local until convert_sync_batch_norm() finds it: declare it
// instead of torch::nn::BatchNorm1d, 2d and 3d.
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
// ranks of `group` (default_group() when empty), and returns the number of
// layers. Every rank calls it, before it wraps the module. Parameters and
// buffers stay the same tensors, so that an optimizer may hold them already.
//
// The layers get a separate group of the same ranks, so that their collectives
// in a backward pass and the gradient buckets need no common order.
//
// InvalidArgument, without any change, when anything other than a Sequential
// holds a BatchNorm of LibTorch's.
int convert_sync_batch_norm(torch::nn::Module& module,
                            std::shared_ptr<ProcessGroup> group = nullptr);

// Aborts the groups over which layers in `module` take their statistics, so
// that no rank waits in them for one that has left its pass. Never blocks. A
// DistributedDataParallel that averages gradients calls it when a backward pass
// throws after a gradient has arrived; for exceptions elsewhere, as in a
// forward pass, the caller does.
void abort_groups_of_batch_norms(const torch::nn::Module& module,
                                 const std::string& reason) noexcept;

}  // namespace lockstep
