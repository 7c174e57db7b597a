// Runs a trained model over a data set that is divided over the ranks of a
// group, without gradients.
//
//     const auto result = lockstep::evaluate(model, samples, {.classes = 10});
//     if (group->rank() == 0) std::cout << result.confusion.accuracy();
//
// The samples are cut into blocks of a batch each, and rank r of n takes every
// n-th block from the r-th on. Ranks do not wait for each other: each goes
// through its blocks alone, and what they found is merged once, at the end, for
// which the group's timeout holds. A block is computed alike whoever has it, so
// the results have the same bits on any number of ranks that have the same
// number of compute threads.
//
// Memory: beside the model and its samples, a rank holds three batches, on a
//         device one more, and of what it found: evaluate() the counts and 8
//         bytes a block; predict() 20 bytes a sample of its own, and 4 a class
//         more with `probabilities`. Rank 0 holds that of all samples, and
//         twice while it puts them in order.
// Threads: collectives: every rank of the group calls them at the same point of
//          the program, with its own model, equal to the others'; of a
//          DistributedDataParallel the buffers are made equal first.
// Errors:  InvalidArgument for options that cannot work, for a model that does
//          not give a number for each class, and for labels outside the
//          classes; SystemError (ENOMEM) where a GPU has no room for a pass,
//          see torch/out_of_memory.h; what the samples throw; what collectives
//          throw: a rank that fails alone is a PeerFailure to the others when
//          it leaves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <torch/nn/module.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sample_source.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/train/evaluation_report.h"

namespace lockstep {

// Images (samples x channels x height x width, float32) to logits (samples x
// classes), of a model in evaluation mode and on its device.
using Forward = std::function<at::Tensor(const at::Tensor& images)>;

inline constexpr std::int64_t kEvaluationBatch = 250;

// What to try where a GPU has no room for a pass of evaluate() or predict().
inline constexpr std::string_view kEvaluationMemoryAdvice =
    "try a smaller EvaluationOptions::batch_size, a larger GPU, or the CPU "
    "(--device cpu)";

struct EvaluationOptions {
  std::int64_t classes = 0;  // that the model tells apart; at least 1
  std::int64_t batch_size = kEvaluationBatch;
  // Where the model is, and gets its images.
  at::Device device = at::kCPU;
  // How images are stored: see store_channels_last() of train/models.h.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  // predict(): whether to keep the probability of every class.
  bool probabilities = false;
  // The ranks that share the samples; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

// A sample a row, in the samples' order; on rank 0. Elsewhere undefined.
struct Predictions {
  at::Tensor labels;       // int64: what the samples say, kNoLabel of none
  at::Tensor predicted;    // int64: the class with the largest probability
  at::Tensor probability;  // float32: of that class
  // float32, samples x classes, where it was asked for.
  at::Tensor probabilities{};
};

// The same on every rank, but for the duration.
Evaluation evaluate(const Forward& forward, const SampleSource& samples,
                    const EvaluationOptions& options);
Predictions predict(const Forward& forward, const SampleSource& samples,
                    const EvaluationOptions& options);

// Hands the logits and labels of each batch that `loader` has to `take`, both
// on the host; `batches` puts images on the model's device, which is given a
// batch more while the host waits for an output. Waits at most `patience` for a
// batch.
void for_each_output(Loader& loader, DeviceBatches& batches,
                     const Forward& forward, std::chrono::nanoseconds patience,
                     const std::function<void(const at::Tensor& logits,
                                              const at::Tensor& labels)>& take);

// A scope in which a module and all within it are in evaluation mode: no
// dropout, and batch normalisation by its running statistics. Then each is
// again in the mode that it was in.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  // Outer ones first. Bare pointers: a module that nobody shares is fine too.
  std::vector<std::pair<torch::nn::Module*, bool>> was_training_;
};

// The same with a module, whose forward() gives logits.
template <class Module>
requires std::derived_from<Module, torch::nn::Module> Evaluation
evaluate(Module& module, const SampleSource& samples,
         const EvaluationOptions& options) {
  const EvaluationMode mode(module);
  return evaluate(
      Forward([&](const at::Tensor& images) { return module.forward(images); }),
      samples, options);
}

template <class Module>
requires std::derived_from<Module, torch::nn::Module> Predictions
predict(Module& module, const SampleSource& samples,
        const EvaluationOptions& options) {
  const EvaluationMode mode(module);
  return predict(
      Forward([&](const at::Tensor& images) { return module.forward(images); }),
      samples, options);
}

// The same with a wrapped one, of which all ranks first take rank 0's buffers;
// the group is the wrapper's unless `options` name one.
template <class Module>
Evaluation evaluate(DistributedDataParallel<Module>& model,
                    const SampleSource& samples, EvaluationOptions options) {
  if (!options.group) options.group = model.group();
  model.broadcast_buffers();
  return evaluate(*model, samples, options);
}

template <class Module>
Predictions predict(DistributedDataParallel<Module>& model,
                    const SampleSource& samples, EvaluationOptions options) {
  if (!options.group) options.group = model.group();
  model.broadcast_buffers();
  return predict(*model, samples, options);
}

}  // namespace lockstep
