#include "apps/trainer/loop/training_step.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kBatch = 24;

// Counts the passes through the model.
class CountingModel : public Classifier {
 public:
  explicit CountingModel(std::shared_ptr<Classifier> model)
      : model_(register_module("model", std::move(model))) {}
  at::Tensor forward(const at::Tensor& images) override {
    sizes.push_back(images.size(0));
    return model_->forward(images);
  }

  std::vector<std::int64_t> sizes;

 private:
  std::shared_ptr<Classifier> model_;
};

struct Job {
  int ranks = 1;
  int steps = 4;
  std::int64_t batch = kBatch;
  bool sharded = false;
  const char* optimizer = "sgd";
  double learning_rate = 0.1;
  double images_of_rank_1 = 1;  // are multiplied by it
  TrainerOptions options{};
};

struct Outcome {
  at::Tensor before, after;  // all weights
  Metrics metrics;           // of the last step, over all ranks
  std::optional<double> grad_norm;
  std::vector<std::int64_t> passes;  // images in each pass of rank 0
  std::int64_t skipped = 0;
};

at::Tensor flat(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts).clone();
}

// The same images and labels for every step and number of ranks.
Outcome run(const Job& job) {
  TrainerOptions options = job.options;
  options.optimizer = job.optimizer;
  options.learning_rate = job.learning_rate;
  const at::Tensor images =
      at::sin(at::arange(job.batch * 784).to(at::kFloat)).mul(2);
  const at::Tensor labels = at::arange(job.batch).remainder(10);
  Outcome outcome;
  run_ranks("shm", job.ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const auto network = std::make_shared<CountingModel>(
        make_model("mlp", {.hidden = {16}, .seed = 4}));
    DistributedDataParallel<Classifier> model(
        std::static_pointer_cast<Classifier>(network),
        {.group = group, .average_gradients = !job.sharded});
    ClippingOptimizer optimizer =
        make_optimizer(options, model.parameters(),
                       {.sharded_over = job.sharded ? group : nullptr});
    TrainingStep step(model, optimizer, options);
    const at::Tensor before = flat(*network);
    const std::int64_t share = job.batch / group->size();
    const std::int64_t first = group->rank() * share;
    BatchTensors mine{
        images.reshape({job.batch, 1, 28, 28}).narrow(0, first, share),
        labels.narrow(0, first, share)};
    if (group->rank() == 1) mine.images = mine.images * job.images_of_rank_1;
    Metrics metrics;
    for (int i = 0; i < job.steps; ++i) metrics = step.run(mine).read();
    metrics = reduce(metrics, *group);
    if (group->rank() == 0)
      outcome = {before,           flat(*network), metrics,
                 step.grad_norm(), network->sizes, step.skipped()};
  });
  return outcome;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class Step : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(Step, HasTheSameResultInAnyNumberOfMicroBatchesOnAnyNumberOfRanks) {
  const Outcome whole = run({});
  EXPECT_GT(distance(whole.before, whole.after), 0.01);
  for (const int ranks : {1, 2, 4})
    for (const int accumulate : {1, 2, 4, 5}) {
      const Outcome cut =
          run({.ranks = ranks, .options = {.accumulate = accumulate}});
      EXPECT_LT(distance(whole.after, cut.after), 1e-5)
          << accumulate << " on " << ranks << " ranks";
      EXPECT_NEAR(whole.metrics.loss, cut.metrics.loss, 1e-3);
      EXPECT_EQ(cut.metrics.samples, kBatch);
    }
}

TEST_F(Step, MakesAPassAMicroBatchAsEqualAsTheyCanBe) {
  EXPECT_EQ(run({.steps = 1, .batch = 10, .options = {.accumulate = 4}}).passes,
            (std::vector<std::int64_t>{2, 3, 2, 3}));
  EXPECT_EQ(run({.steps = 1, .batch = 3, .options = {.accumulate = 4}}).passes,
            (std::vector<std::int64_t>{1, 1, 1}));
}

TEST_F(Step, IsTheSameWithAShardedOptimizer) {
  for (const char* optimizer : {"sgd", "adam"})
    for (const int ranks : {1, 2, 3})
      for (const int accumulate : {1, 2}) {
        Job job{.ranks = ranks,
                .optimizer = optimizer,
                .learning_rate = 0.01,
                .options = {.accumulate = accumulate, .clip_norm = 0.5}};
        const Outcome whole = run(job);
        job.sharded = true;
        const Outcome sharded = run(job);
        EXPECT_LT(distance(whole.after, sharded.after), 1e-6)
            << optimizer << " on " << ranks << " ranks, " << accumulate;
        EXPECT_NEAR(*whole.grad_norm, *sharded.grad_norm, 1e-5);
      }
}

TEST_F(Step, MovesWeightsByNoMoreThanTheRateTimesTheClippedNorm) {
  for (const int ranks : {1, 2})
    for (const bool sharded : {false, true}) {
      Job job{.ranks = ranks, .steps = 1, .sharded = sharded};
      const Outcome free = run(job);
      const double moved = (free.after - free.before).norm().item<double>();
      job.options.clip_norm = 0.01;
      const Outcome clipped = run(job);
      // SGD's first step is the rate times the gradient.
      EXPECT_NEAR(*clipped.grad_norm, moved / job.learning_rate, 1e-3);
      EXPECT_GT(*clipped.grad_norm, 0.1);
      EXPECT_NEAR((clipped.after - clipped.before).norm().item<double>(),
                  0.01 * job.learning_rate, 1e-5);
      job.options.clip_norm = 1e6;
      EXPECT_LT(distance(run(job).after, free.after), 1e-7);
      EXPECT_FALSE(free.grad_norm.has_value());
    }
}

TEST_F(Step, InBfloat16KeepsFloat32WeightsThatEndNearby) {
  // The rate is low enough that training does not magnify differences.
  Job job{.ranks = 2, .steps = 20, .learning_rate = 0.002};
  const Outcome full = run(job);
  job.options.precision = "bfloat16";
  const Outcome half = run(job);
  EXPECT_EQ(half.after.scalar_type(), at::kFloat);
  EXPECT_GT(distance(full.after, half.after), 0);
  EXPECT_LT(distance(full.after, half.after),
            0.1 * distance(full.before, full.after));
  EXPECT_NEAR(half.metrics.mean_loss(), full.metrics.mean_loss(), 0.05);
}

TEST_F(Step, InFloat16ScalesLossesAndEndsNearby) {
  for (const bool sharded : {false, true})
    for (const int accumulate : {1, 2}) {
      Job job{.ranks = 2,
              .steps = 20,
              .sharded = sharded,
              .learning_rate = 0.002,
              .options = {.accumulate = accumulate}};
      if (accumulate == 2) job.options.clip_norm = 0.5;
      const Outcome full = run(job);
      job.options.precision = "float16";
      const Outcome half = run(job);
      EXPECT_EQ(half.after.scalar_type(), at::kFloat);
      EXPECT_EQ(half.skipped, 0);
      EXPECT_GT(distance(full.after, half.after), 0);
      EXPECT_LT(distance(full.after, half.after),
                0.05 * distance(full.before, full.after));
    }
}

TEST_F(Step, InFloat16LeavesOutWhatOverflowsOnSomeRankOnAllRanks) {
  for (const bool sharded : {false, true}) {
    const Outcome outcome = run({.ranks = 2,
                                 .steps = 3,
                                 .sharded = sharded,
                                 .images_of_rank_1 = 1e6,
                                 .options = {.precision = "float16"}});
    EXPECT_EQ(outcome.skipped, 3);
    EXPECT_EQ(distance(outcome.before, outcome.after), 0);
  }
}

TEST_F(Step, LeavesOutWhatIsNotFiniteOnSomeRankInEveryPrecisionIfAsked) {
  for (const char* precision : {"float32", "bfloat16", "float16"})
    for (const bool sharded : {false, true}) {
      const auto skipping = [&](double factor) {
        return run({.ranks = 2,
                    .steps = 3,
                    .sharded = sharded,
                    .images_of_rank_1 = factor,
                    .options = {.on_nan = "skip", .precision = precision}});
      };
      const Outcome nan = skipping(std::nan(""));
      EXPECT_EQ(nan.skipped, 3) << precision;
      EXPECT_EQ(distance(nan.before, nan.after), 0) << precision;
      // A scale of 1 changes no bit.
      const Outcome usual = run({.ranks = 2,
                                 .steps = 3,
                                 .sharded = sharded,
                                 .options = {.precision = precision}});
      EXPECT_EQ(distance(skipping(1).after, usual.after), 0) << precision;
    }
}

TEST_F(Step, RefusesWhatCannotWork) {
  const auto refusal = [](const TrainerOptions& options) {
    return error_text([&] { run({.options = options}); });
  };
  EXPECT_THAT(refusal({.accumulate = 0}), HasSubstr("0 micro-batches"));
  for (const double norm :
       {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THAT(refusal({.clip_norm = norm}), HasSubstr("clipped to a norm"));
}

}  // namespace
}  // namespace lockstep
