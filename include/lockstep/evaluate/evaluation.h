// Runs a trained model over a data set, divided over the ranks of a group,
// without gradients.
//
//     const auto result = lockstep::evaluate(model, samples, {.classes = 10});
//     if (group->rank() == 0) std::cout << result.confusion.accuracy();
//
// The samples are split into blocks of one batch each, and rank r of n takes
// every n-th block from the r-th on. Ranks do not wait for each other: each
// computes its blocks alone, and one merge at the end, under the group's
// timeout, joins the results. Every rank computes a block in the same way, so
// the results have the same bits on any number of ranks with the same number of
// compute threads.
//
// Memory: besides the model and its samples, a rank holds three batches, on a
//         device one more, and results: evaluate() the counts and 8 bytes per
//         block; predict() 20 bytes per sample of its own, and with
//         `probabilities` 4 more per class. Rank 0 holds the results of all
//         samples, twice while it sorts them.
// Threads: collectives: every rank of the group calls them at the same point of
//          the program, with its own model, equal to the others'; a
//          DistributedDataParallel's buffers are made equal first.
// Errors:  InvalidArgument for options that cannot work, for a model that does
//          not return one number per class, and for labels outside the classes;
//          SystemError (ENOMEM) where a GPU has no room for a pass; those of
//          the samples and of collectives: when a rank fails alone and leaves,
//          the others get PeerFailure.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <torch/nn/module.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "lockstep/torch/distributed_data_parallel.h"

namespace lockstep {

// Images (samples x channels x height x width, float32) to logits (samples x
// classes), by a model in evaluation mode, on its device.
using Forward = std::function<at::Tensor(const at::Tensor& images)>;

inline constexpr std::int64_t kEvaluationBatch = 250;

// kEvaluationBatch, or fewer for large images: a batch of at most 32 MiB.
std::int64_t evaluation_batch(const ImageShape& shape);

struct EvaluationOptions {
  std::int64_t classes = 0;  // number of the model's classes; at least 1
  std::int64_t batch_size = kEvaluationBatch;
  // The model's device, to which images are copied.
  at::Device device = at::kCPU;
  // How images are stored: as the weights of the model's convolutions are.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  // predict(): whether to keep the probability of every class.
  bool probabilities = false;
  // Threads that read samples.
  std::int64_t workers = 1;
  // The number of samples per rank that may be broken, as in LoaderOptions:
  // evaluate() leaves them out, predict() says nothing of them. One more is an
  // error; that of predict() names all. The same on every rank.
  std::int64_t max_broken = 0;
  // The ranks that share the samples; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

// Counts how often a sample of one class was predicted to be of another.
// Counts of parts can be added, also over ranks. InvalidArgument for a class
// outside 0 … classes - 1.
class ConfusionMatrix {
 public:
  // For classes 0 … classes - 1, at least one.
  explicit ConfusionMatrix(std::int64_t classes);

  // Counts one sample.
  void add(std::int64_t label, std::int64_t predicted);

  std::int64_t classes() const { return classes_; }
  std::int64_t count(std::int64_t label, std::int64_t predicted) const {
    return counts_[place(label, predicted)];
  }
  // All counts, label by label.
  std::span<const std::int64_t> counts() const { return counts_; }
  std::vector<std::int64_t>& counts() { return counts_; }

  std::int64_t samples() const;
  std::int64_t correct() const;
  // Samples of the class, and samples predicted to be of it.
  std::int64_t labelled(std::int64_t label) const;
  std::int64_t predicted(std::int64_t label) const;

  // The share of all samples that is predicted right. This and the shares below
  // are NaN without samples to divide by.
  double accuracy() const;
  // Of the samples of the class, the share predicted right: its accuracy.
  double recall(std::int64_t label) const;
  // Of the samples predicted to be of the class, the share that is.
  double precision(std::int64_t label) const;
  // The harmonic mean of the two.
  double f1(std::int64_t label) const;

  friend bool operator==(const ConfusionMatrix&,
                         const ConfusionMatrix&) = default;

 private:
  std::size_t place(std::int64_t label, std::int64_t predicted) const;

  std::int64_t classes_;
  std::vector<std::int64_t> counts_;
};

struct Evaluation {
  ConfusionMatrix confusion;
  double loss = 0;  // the sum of the samples' losses
  // Of samples that were left out, their number and the first, as a sentence.
  std::optional<std::string> broken{};
  // From the beginning of the pass to the end of the merge, on this rank.
  std::chrono::duration<double> duration{};

  // NaN without samples.
  double mean_loss() const {
    return loss / static_cast<double>(confusion.samples());
  }
  double images_per_second() const {
    return static_cast<double>(confusion.samples()) / duration.count();
  }
};

// One row per sample, in the samples' order, on rank 0; undefined on other
// ranks.
struct Predictions {
  at::Tensor labels;       // int64: the samples' labels, or kNoLabel
  at::Tensor predicted;    // int64: the class with the largest probability
  at::Tensor probability;  // float32: of that class
  // float32, samples x classes, if requested.
  at::Tensor probabilities{};
  // By index. Their rows are kNoLabel, and NaN.
  std::vector<BrokenSample> broken{};
};

// The same on every rank, except the duration.
Evaluation evaluate(const Forward& forward, const SampleSource& samples,
                    const EvaluationOptions& options);
Predictions predict(const Forward& forward, const SampleSource& samples,
                    const EvaluationOptions& options);

// A scope in which a module and all within it are in evaluation mode: no
// dropout, and batch normalisation by its running statistics. The destructor
// restores each module's mode.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  // Outer ones first. Raw pointers, so that the module need not be in a
  // shared_ptr.
  std::vector<std::pair<torch::nn::Module*, bool>> was_training_;
};

// The same with a module whose forward() returns logits.
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

// The same with a wrapped module; all ranks first take rank 0's buffers. The
// group is the wrapper's unless `options` name one.
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
