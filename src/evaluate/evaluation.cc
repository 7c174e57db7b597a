#include "lockstep/evaluate/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/gpu_pass.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/evaluate/broken_images.h"
#include "src/evaluate/model_outputs.h"
#include "src/evaluate/pending_metrics.h"
#include "src/evaluate/readable_samples.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// Where a GPU has no room for a pass.
constexpr std::string_view kMemoryAdvice =
    "try a smaller EvaluationOptions::batch_size, a larger GPU, or the CPU "
    "(--device cpu)";

// This rank's blocks of the samples, and their positions.
class Blocks {
 public:
  Blocks(const SampleSource& samples, const EvaluationOptions& options,
         const ProcessGroup& group)
      : samples_(samples.size()),
        size_(options.batch_size),
        rank_(group.rank()),
        ranks_(group.size()) {
    if (size_ < 1)
      throw InvalidArgument("a model cannot be evaluated in batches of " +
                            std::to_string(size_) + "; the minimum is 1");
    if (samples_ < 1)
      throw InvalidArgument("the data set to evaluate has no samples");
  }

  std::int64_t size() const { return size_; }
  std::int64_t samples() const { return samples_; }
  std::int64_t count() const { return (samples_ + size_ - 1) / size_; }
  // The largest number of blocks of a rank.
  std::int64_t count_of_rank() const { return (count() + ranks_ - 1) / ranks_; }
  // The number of this rank's i-th block.
  std::int64_t number(std::int64_t i) const { return i * ranks_ + rank_; }

  // This rank's samples, block after block.
  std::vector<std::int64_t> indices() const {
    std::vector<std::int64_t> own;
    for (std::int64_t block = rank_; block < count(); block += ranks_)
      for (std::int64_t i = block * size_;
           i < std::min((block + 1) * size_, samples_); ++i)
        own.push_back(i);
    return own;
  }

 private:
  std::int64_t samples_;
  std::int64_t size_;
  std::int64_t rank_;
  std::int64_t ranks_;
};

std::shared_ptr<ProcessGroup> group_of(const EvaluationOptions& options) {
  return options.group ? options.group : default_group();
}

void check_logits(const at::Tensor& logits, const at::Tensor& labels,
                  std::int64_t classes) {
  if (logits.dim() == 2 && logits.size(0) == labels.size(0) &&
      logits.size(1) == classes)
    return;
  std::string shape;
  for (const std::int64_t extent : logits.sizes())
    shape += (shape.empty() ? "" : " x ") + std::to_string(extent);
  throw InvalidArgument("the model gave " + shape + " numbers for " +
                        std::to_string(labels.size(0)) + " images of " +
                        std::to_string(classes) +
                        " classes\n  next:    use a model that gives " +
                        std::to_string(classes) + " for each image");
}

void count(ConfusionMatrix& confusion, const at::Tensor& labels,
           const at::Tensor& predicted) {
  const auto label = labels.accessor<std::int64_t, 1>();
  const auto guess = predicted.accessor<std::int64_t, 1>();
  for (std::int64_t i = 0; i < labels.size(0); ++i)
    confusion.add(label[i], guess[i]);
}

// Other ranks' blocks have a loss of 0 here, so that in the end every rank adds
// the same numbers in the same order.
void merge(std::vector<double>& losses, ConfusionMatrix& confusion,
           ProcessGroup& group) {
  constexpr CallOptions kCall{.label = "merging an evaluation"};
  group.all_reduce(view(losses), ReduceOp::kSum, kCall).wait();
  group.all_reduce(view(confusion.counts()), ReduceOp::kSum, kCall).wait();
}

// On rank 0: every rank's rows, sorted from block order to the samples' order.
at::Tensor merge(const at::Tensor& own, const Blocks& blocks,
                 ProcessGroup& group) {
  const std::int64_t width = own.size(1);
  at::Tensor all;
  if (group.rank() == 0)
    all = at::empty({group.size(), own.size(0), width}, own.options());
  const std::vector<Buffer> outputs =
      all.defined() ? std::vector<Buffer>{view(all)} : std::vector<Buffer>();
  group.gather(view(own), outputs, 0, {.label = "merging predictions"}).wait();
  if (!all.defined()) return all;
  return all.view({group.size(), -1, blocks.size(), width})
      .transpose(0, 1)
      .reshape({-1, width})
      .narrow(0, 0, blocks.samples());
}

// This rank's predictions, a row per sample.
class PredictedRows {
 public:
  PredictedRows(std::int64_t rows, const EvaluationOptions& options)
      : classes_(at::zeros({rows, 2}, at::kLong)),
        shares_(
            at::zeros({rows, 1 + (options.probabilities ? options.classes : 0)},
                      at::kFloat)) {}

  void add(const at::Tensor& logits, const at::Tensor& labels) {
    const std::int64_t count = labels.size(0);
    const at::Tensor broken = labels.eq(kBrokenLabel).unsqueeze(1);
    const at::Tensor all = logits.softmax(1);
    const auto [most, predicted] = all.max(1);
    classes_.narrow(0, done_, count)
        .copy_(at::stack({labels, predicted}, 1).masked_fill(broken, kNoLabel));
    const at::Tensor own = shares_.narrow(0, done_, count);
    own.select(1, 0).copy_(most);
    if (own.size(1) > 1) own.slice(1, 1).copy_(all);
    own.masked_fill_(broken, std::numeric_limits<double>::quiet_NaN());
    done_ += count;
  }

  // Labels and predictions.
  const at::Tensor& classes() const { return classes_; }
  // The predictions' probabilities, then those of all classes.
  const at::Tensor& shares() const { return shares_; }

 private:
  at::Tensor classes_;
  at::Tensor shares_;
  std::int64_t done_ = 0;
};

// The broken samples of all ranks.
std::vector<BrokenSample> checked(const std::vector<BrokenSample>& own,
                                  const EvaluationOptions& options,
                                  ProcessGroup& group) {
  BrokenImages images({"image", "left out"});
  images.add(own);
  std::vector<BrokenSample> all;
  for (const auto& [index, message] : images.of_all_ranks(group))
    all.push_back({index, message});
  std::vector<std::int64_t> most{std::ssize(own)};
  group.all_reduce(view(most), ReduceOp::kMax, {.label = "broken images"})
      .wait();
  if (most[0] <= options.max_broken) return all;
  std::string text =
      "cannot predict: " + std::to_string(all.size()) +
      (all.size() == 1 ? " sample is broken" : " samples are broken");
  for (const BrokenSample& sample : all) text += "\n  " + sample.message;
  throw InvalidArgument(
      text +
      "\n  next:    repair or remove them, or leave their rows empty with "
      "--max-broken " +
      std::to_string(most[0]) + " (EvaluationOptions::max_broken)");
}

MemoryUser memory_user(ProcessGroup& group, at::Device device) {
  return {.group = group,
          .device = device,
          .what = "evaluating a model",
          .next = std::string(kMemoryAdvice)};
}

}  // namespace

std::int64_t evaluation_batch(const ImageShape& shape) {
  constexpr std::int64_t kMostNumbers = std::int64_t{8} << 20;
  const auto [channels, height, width] = shape;
  return std::clamp(kMostNumbers / (channels * height * width), std::int64_t{1},
                    kEvaluationBatch);
}

EvaluationMode::EvaluationMode(torch::nn::Module& module) {
  was_training_.emplace_back(&module, module.is_training());
  for (const auto& part : module.modules(/*include_self=*/false))
    was_training_.emplace_back(part.get(), part->is_training());
  module.eval();
}

EvaluationMode::~EvaluationMode() {
  for (const auto& [module, training] : was_training_) module->train(training);
}

Evaluation evaluate(const Forward& forward, const SampleSource& samples,
                    const EvaluationOptions& options) try {
  const auto start = Clock::now();
  const auto group = group_of(options);
  const Blocks blocks(samples, options, *group);
  Evaluation result{.confusion = ConfusionMatrix(options.classes)};
  std::vector<double> losses(static_cast<std::size_t>(blocks.count()));
  const ReadableSamples readable(samples, options.max_broken);
  DeviceBatches batches(readable, options.device, options.memory_format);
  Loader loader(readable, blocks.indices(),
                {.batch_size = blocks.size(),
                 .workers = options.workers,
                 .elements = batches.elements()});
  std::int64_t done = 0;
  for_each_output(
      loader, batches, forward, group->timeout(),
      [&](const at::Tensor& all_logits, const at::Tensor& all_labels) {
        check_logits(all_logits, all_labels, options.classes);
        const auto block = static_cast<std::size_t>(blocks.number(done++));
        const auto [logits, labels] = without_broken(all_logits, all_labels);
        if (labels.size(0) == 0) return;
        count(result.confusion, labels, logits.argmax(1));
        losses[block] = PendingMetrics(at::cross_entropy_loss(logits, labels),
                                       logits, labels)
                            .read()
                            .loss;
      });
  merge(losses, result.confusion, *group);
  if (options.max_broken > 0) {
    BrokenImages broken({"image", "left out"});
    broken.add(readable.broken());
    result.broken = broken.summary(*group);
  }
  for (const double loss : losses) result.loss += loss;
  result.duration = Clock::now() - start;
  return result;
} catch (...) {
  rethrow_out_of_memory(memory_user(*group_of(options), options.device));
}

Predictions predict(const Forward& forward, const SampleSource& samples,
                    const EvaluationOptions& options) try {
  const auto group = group_of(options);
  const Blocks blocks(samples, options, *group);
  PredictedRows rows(blocks.count_of_rank() * blocks.size(), options);
  // All are read, so that the error can name all that are broken.
  const ReadableSamples readable(samples, samples.size());
  DeviceBatches batches(readable, options.device, options.memory_format);
  Loader loader(readable, blocks.indices(),
                {.batch_size = blocks.size(),
                 .workers = options.workers,
                 .elements = batches.elements()});
  for_each_output(loader, batches, forward, group->timeout(),
                  [&](const at::Tensor& logits, const at::Tensor& labels) {
                    check_logits(logits, labels, options.classes);
                    rows.add(logits, labels);
                  });
  const auto broken = checked(readable.broken(), options, *group);
  const at::Tensor all_classes = merge(rows.classes(), blocks, *group);
  const at::Tensor all_shares = merge(rows.shares(), blocks, *group);
  if (group->rank() != 0) return {};
  return {.labels = all_classes.select(1, 0).contiguous(),
          .predicted = all_classes.select(1, 1).contiguous(),
          .probability = all_shares.select(1, 0).contiguous(),
          .probabilities = options.probabilities
                               ? all_shares.slice(1, 1).contiguous()
                               : at::Tensor(),
          .broken = broken};
} catch (...) {
  rethrow_out_of_memory(memory_user(*group_of(options), options.device));
}

}  // namespace lockstep
