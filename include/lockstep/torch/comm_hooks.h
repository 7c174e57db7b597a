// What ranks send in the place of gradients: a hook's interface, the hooks that
// compress, and those that average now and then.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Communication hooks: a user's own way to reduce a bucket of gradients.
//
//     class Halved : public lockstep::CommHook {
//       using Bucket = lockstep::GradBucket;
//       lockstep::HookProgress start(const Bucket& bucket) override {
//         bucket.buffer.div_(2);
//         return {lockstep::all_reduce_average(bucket)};
//       }
//     };
//     model.register_comm_hook(std::make_shared<Halved>());
//
// A reducing pass calls the hook once per bucket. The hook leaves the new
// gradients in the bucket's buffer, the same on every rank. It starts what it
// can and returns; when backward ends, the remaining steps of all buckets run
// in turn, so that one bucket communicates while another computes.
//
// Operations must start in the same order on every rank. They do if each step
// of a hook starts the same operations on all ranks: the order of buckets and
// of turns is the same everywhere.
//
// Memory that an operation works on must live until the operation is done: in
// the bucket, in a capture of `then`, or in the hook itself. A step that starts
// several operations waits for all except the last, at the latest in `then`; a
// step that may throw does so before it starts an operation.
//
// Threads: called by the thread that runs backward(), with gradients off.
// Errors:  backward() throws what a hook or its operations throw; the group is
//          aborted with that reason, so that no other rank waits for this one.
// Source:  torch.distributed.GradBucket and its register_comm_hook().

// A handle: copies refer to the same memory. A hook must not use that memory
// after the pass.
struct GradBucket {
  std::size_t index = 0;
  bool is_last = false;  // of this pass
  // All gradients one after another, without gaps: one dimension, one type.
  at::Tensor buffer{};
  // Views of it with the parameters' shapes and strides, and the parameters. In
  // the place of one that is known to have sparse gradients, which travel by
  // themselves, is a tensor without elements.
  std::vector<at::Tensor> gradients{};
  std::vector<at::Tensor> parameters{};
  // The ranks that average the gradients: a duplicate of the group that the
  // module was wrapped with, so that a hook's operations have an order of their
  // own. On GPUs, and where the backend has no duplicates, it is that group
  // itself.
  std::shared_ptr<ProcessGroup> group{};
};

// An operation under way and the step that follows it: when `work` is complete,
// `then` runs. Without `then` the bucket is done.
struct HookProgress {
  Work work{};
  std::function<HookProgress()> then{};
};

class CommHook {
 public:
  virtual ~CommHook() = default;

  // Begins to reduce `bucket`, which holds all its gradients of this rank.
  virtual HookProgress start(const GradBucket& bucket) = 0;

  // Called when a pass ended in an exception and the bucket's group is aborted
  // for `reason`: a hook aborts its own groups here. Never blocks.
  virtual void abort(std::string_view /*reason*/) noexcept {}

  // Whether a pass leaves parts of the gradient of `parameter` unreduced. Then
  // a later pass must not add to it before zero_grad(): backward() throws
  // InvalidArgument, unless .grad has been changed in place in between, as by
  // clipping.
  virtual bool reduces_in_part(const at::Tensor& /*parameter*/) const {
    return false;
  }

  // Whether the passes from here on leave the ranks' models different, as
  // gradients that stay on their rank do: they are then not compared. The same
  // on every rank.
  virtual bool replicas_may_differ() const { return false; }
};

// Starts the operation that runs without a hook.
Work all_reduce_average(const GradBucket& bucket);

// `bucket` with other memory: `buffer` has the same number of elements, of any
// type.
GradBucket with_buffer(const GradBucket& bucket, const at::Tensor& buffer);

// `progress`, followed by `last` at its end.
HookProgress followed_by(HookProgress progress, std::function<void()> last);

// Sends gradients with half their bits: rounded to 16 bits, averaged, and
// widened again.
//
//     model.register_comm_hook(lockstep::fp16_compress_hook());
//
// The average itself is computed in float32 and rounded once. A rank's rounding
// errors are lost: float16 keeps 11 bits, bfloat16 keeps 8 with float32's
// range. A gradient beyond 65504 becomes infinite in float16.
//
// Threads: like CommHook.
// Errors:  InvalidArgument for a null inner hook, and for a type that is
//          neither float16 nor bfloat16.
// Source:  torch.distributed.algorithms.ddp_comm_hooks.default_hooks.

// How many bytes a compressing hook saved, and how much precision it lost.
struct CompressionReport {
  // Passes in all, and how many of them were compressed.
  std::int64_t passes = 0;
  std::int64_t compressed_passes = 0;
  // Bytes of this rank's gradients, and of what the hook sent instead or passed
  // to its inner hook, over all passes.
  std::int64_t bytes_before = 0;
  std::int64_t bytes_after = 0;
  // The norm of what was not sent, relative to the gradients' norm, in the last
  // measured pass: 0 is nothing lost, 1 is all. Of this rank alone.
  double relative_error = 0;

  // bytes_before / bytes_after; 1 before the first pass.
  double ratio() const {
    return bytes_after == 0 ? 1
                            : static_cast<double>(bytes_before) /
                                  static_cast<double>(bytes_after);
  }
};

// A hook that compresses, this one or PowerSgdHook.
class CompressingHook : public CommHook {
 public:
  // The error is measured in compressed passes 1, 2, 4, 8 and so on, and in
  // every multiple of this number. A measurement costs about two passes over
  // the gradients.
  static constexpr std::int64_t kMeasureEvery = 100;

  // Waits for the device if the gradients are on a GPU.
  CompressionReport report() const;

 protected:
  // A subclass calls one of these once per bucket, when the bucket is done, in
  // the order of buckets.
  void sent(const GradBucket& bucket, std::int64_t bytes);
  void sent_uncompressed(const GradBucket& bucket);

  // Whether this pass measures the error.
  bool measures() const;
  // Takes a bucket's sums of squares, float64, on any device: of the gradients
  // and of what was not sent. In a captured pass they change with each replay.
  void measured(const at::Tensor& squares, const at::Tensor& squares_lost);

 private:
  CompressionReport report_;  // except the error
  std::int64_t pass_measured_ = -1;
  at::Tensor squares_, squares_lost_;  // of that pass, so far
};

// The reduction that runs without a hook, as a hook: for hooks that wrap
// others.
std::shared_ptr<CommHook> allreduce_hook();

// Passes 16-bit buckets to `inner`, and widens its results.
class CompressHook final : public CompressingHook {
 public:
  explicit CompressHook(at::ScalarType type,
                        std::shared_ptr<CommHook> inner = allreduce_hook());

  HookProgress start(const GradBucket& bucket) override;
  void abort(std::string_view reason) noexcept override {
    inner_->abort(reason);
  }
  bool reduces_in_part(const at::Tensor& parameter) const override {
    return inner_->reduces_in_part(parameter);
  }
  bool replicas_may_differ() const override {
    return inner_->replicas_may_differ();
  }

 private:
  at::ScalarType type_;
  std::shared_ptr<CommHook> inner_;
};

std::shared_ptr<CompressHook> fp16_compress_hook();
std::shared_ptr<CompressHook> bf16_compress_hook();
std::shared_ptr<CompressHook> fp16_compress_wrapper(
    std::shared_ptr<CommHook> inner);
std::shared_ptr<CompressHook> bf16_compress_wrapper(
    std::shared_ptr<CommHook> inner);

// PowerSGD: ranks exchange gradients as products of thin matrices.
//
// A gradient M of n rows and m columns is replaced by P Q', with P of n and Q
// of m rows and r columns: ranks average P = M Q, make its columns orthonormal,
// and average Q = M' P. Ranks exchange (n + m) r numbers instead of n m, in two
// rounds. They keep the error and add it to the next gradient (error feedback),
// and start from the last Q (warm start), so that repeated passes find the
// directions in which gradients are large.
//
// The hook compresses gradients of two or more dimensions whose first dimension
// is the outermost in memory, where that saves enough; it averages all others
// as they are. Error feedback keeps a second copy of the gradients in memory,
// and a third during the pass.
//
// A hook has state, so each model needs its own hook. The hook discards state
// that is of no use: when a bucket has other parameters than before, when a
// number is not finite, when a direction is all zeros.
//
// Threads: like CommHook.
// Errors:  InvalidArgument for options out of range.
// Source:  Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient
//          Compression for Distributed Optimization", NeurIPS 2019; options and
//          defaults as in PyTorch's powerSGD_hook.

struct PowerSgdOptions {
  // r above: 1, 2 and 4 are usual.
  std::int64_t matrix_approximation_rank = 1;
  // The first passes, which are reduced without compression: a tenth of the
  // training is usual. At least 2 with error feedback or warm start, since
  // buckets change after the first pass.
  std::int64_t start_iteration = 1000;
  // A gradient is compressed where its size shrinks by more than this factor.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  bool warm_start = true;
  // Added to the length of columns before they are divided by it. Columns of
  // zeros stay zeros without it, too.
  double orthogonalization_epsilon = 0;
  // For the first Q, which is random, and the same on all ranks.
  std::uint32_t random_seed = 0;
};

class PowerSgdHook final : public CompressingHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options = {});

  HookProgress start(const GradBucket& bucket) override;

  // Passes so far; a resumed run restores them. The hook's state of gradients
  // is not saved, and builds up again.
  std::int64_t iteration() const { return iteration_; }
  void set_iteration(std::int64_t iteration) { iteration_ = iteration; }

 private:
  class Round;
  // State of a bucket.
  struct Memory {
    std::vector<at::Tensor> parameters;
    at::Tensor error;  // as long as its buffer
    at::Tensor q;      // of all its matrices
  };

  Memory& memory_of(const GradBucket& bucket);
  void prepare_q(Round& round, Memory& memory);
  HookProgress average_q(const std::shared_ptr<Round>& round, Memory& memory);

  PowerSgdOptions options_;
  std::mt19937 seeds_;  // of random Qs
  std::int64_t iteration_ = 0;
  std::map<std::size_t, Memory> memories_;  // by bucket
};

// Post-local SGD: after some passes gradients are no longer averaged over all
// ranks, but over a sub-group or not at all; a ModelAverager averages the
// parameters now and then instead.
//
//     const auto host = lockstep::split(*world, {.color = …});
//     model.register_comm_hook(std::make_shared<lockstep::PostLocalSgdHook>(
//         lockstep::PostLocalSgdOptions{.subgroup = host,
//                                       .start_iteration = 100}));
//     lockstep::PeriodicModelAverager averager({.period = 4,
//                                               .warmup_steps = 100});
//     …
//     optimizer.step();
//     averager.average_parameters(model.parameters());
//
// Between two averages the models of ranks that are not in one sub-group
// differ. Do not use it within join(), which does not support averaged models.
// In each pass all ranks still exchange whether gradients are missing: one
// number, for which they wait.
//
// Threads: like CommHook.
// Errors:  InvalidArgument without a sub-group of which this rank is a member;
//          those of its duplicate().
// Source:  Lin, Stich, Patel, Jaggi: "Don't Use Large Mini-Batches, Use Local
//          SGD", ICLR 2020; options as in PyTorch's PostLocalSGDState.

struct PostLocalSgdOptions {
  // The ranks that average gradients later: in most cases those of a host.
  std::shared_ptr<ProcessGroup> subgroup{};
  // The first passes, which average over all ranks.
  std::int64_t start_iteration = 0;
  // When false, later passes do not average gradients at all, and `subgroup` is
  // not used.
  bool post_local_gradient_allreduce = true;
};

class PostLocalSgdHook final : public CommHook {
 public:
  // Every rank of the sub-group makes it at the same point: it reduces
  // gradients in a duplicate of the sub-group, in an order of their own. On
  // GPUs, and where the backend has no duplicates, it uses the sub-group
  // itself.
  explicit PostLocalSgdHook(PostLocalSgdOptions options);

  HookProgress start(const GradBucket& bucket) override;
  void abort(std::string_view reason) noexcept override;
  bool replicas_may_differ() const override {
    return iteration_ >= options_.start_iteration;
  }

  // Passes so far; a resumed run restores them.
  std::int64_t iteration() const { return iteration_; }
  void set_iteration(std::int64_t iteration) { iteration_ = iteration; }

 private:
  PostLocalSgdOptions options_;
  std::shared_ptr<ProcessGroup> order_;  // of the sub-group
  std::int64_t iteration_ = 0;
};

// Averages the parameters of models that the ranks train separately for some
// steps.
//
// Every rank calls it after each step of its optimizer; some of the calls
// average. See PostLocalSgdHook.
//
// Threads: single-threaded; every rank of the group makes the same calls.
// Errors:  InvalidArgument for periods and sizes that do not fit; those of
//          ProcessGroup's operations.
// Source:  torch.distributed.algorithms.model_averaging.

struct PeriodicModelAveragerOptions {
  std::int64_t period = 1;
  // The first steps, after which parameters are not averaged, since gradients
  // were.
  std::int64_t warmup_steps = 0;
  // The ranks that average; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

// Averages over all ranks after the first of every `period` steps.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(PeriodicModelAveragerOptions options);

  void average_parameters(at::TensorList parameters);

  // Calls of average_parameters so far; a resumed run restores them.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

 private:
  PeriodicModelAveragerOptions options_;
  std::int64_t step_ = 0;
};

struct HierarchicalModelAveragerOptions {
  struct Level {
    std::int64_t period = 1;
    int group_size = 1;  // consecutive ranks
  };
  // Each has a longer period and a larger group than the one before it; the
  // last is the group of all ranks, and group sizes divide its size.
  std::vector<Level> levels{};
  std::int64_t warmup_steps = 0;
  std::shared_ptr<ProcessGroup> group{};
};

// Averages often within small groups, and seldom within large ones: a step
// averages at the largest level whose period divides its number.
class HierarchicalModelAverager {
 public:
  // Makes the groups; every rank calls it.
  explicit HierarchicalModelAverager(
      const HierarchicalModelAveragerOptions& options);

  void average_parameters(at::TensorList parameters);

  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

 private:
  struct Level {
    std::int64_t period;
    std::shared_ptr<ProcessGroup> group;
  };

  std::vector<Level> levels_;
  std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
