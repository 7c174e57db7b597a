// Runs that become NaN: what ends them, what stays in their folder, and what
// resumes.
#include "apps/trainer/loop/nan_check.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "apps/trainer/testing/train_on_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/comm/testing/run_ranks.h"
#include "src/evaluate/testing/striped_images.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Images of which one is NaN.
class OneIsNan final : public SampleSource {
 public:
  OneIsNan(std::shared_ptr<const SampleSource> samples, std::int64_t index)
      : samples_(std::move(samples)), index_(index) {}
  std::int64_t size() const override { return samples_->size(); }
  ImageShape shape() const override { return samples_->shape(); }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override {
    const std::int64_t label = samples_->read(index, epoch, image);
    if (index == index_) std::ranges::fill(image, kNan);
    return label;
  }

 private:
  std::shared_ptr<const SampleSource> samples_;
  std::int64_t index_;
};

class ARunThatDiverges : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    quick_.checkpoint_dir = folder_.path();
  }

  TrainingResult train_on(int ranks, const TrainerOptions& options) const {
    TrainingResult result;
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      TrainingResult mine = train(options, data_of(options), group);
      if (group->rank() == 0) result = std::move(mine);
    });
    return result;
  }

  // What all ranks say, if it is the same.
  std::string refusal_on(int ranks, const TrainerOptions& options) const {
    std::mutex mutex;
    std::set<std::string> texts;
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto text =
          error_text<Error>([&] { train(options, data_of(options), group); });
      const std::lock_guard lock(mutex);
      texts.insert(text);
    });
    return texts.size() == 1 ? *texts.begin() : "different messages";
  }

  TrainingData data_of(const TrainerOptions& options) const {
    const auto splits = std::make_shared<const DatasetSplits>(splits_);
    TrainingData data = training_data_of(splits, options);
    if (nan_image_ >= 0)
      data.train = std::make_shared<const OneIsNan>(data.train, nan_image_);
    return data;
  }

  std::vector<std::string> checkpoints() const {
    auto names = folder_.entries();
    std::erase(names, ".lock");
    std::ranges::sort(names);
    return names;
  }

  TrainerOptions resumed_with(const TrainerOptions& first, double rate) const {
    TrainerOptions options = first;
    options.epochs = 4;
    options.resume = "auto";
    options.learning_rate = rate;
    return options;
  }

  // Replaces the tensor of the newest checkpoint whose name ends with `name`.
  void spoil_newest(std::string_view name) const {
    const auto newest = *CheckpointFolder(folder_.path()).newest();
    TensorArchive archive = parse_archive(read_bytes(newest), newest.string());
    for (auto& [other, tensor] : archive.tensors)
      if (other.ends_with(name)) tensor = tensor.clone().fill_(kNan);
    seal(archive);
    write_archive(newest, archive);
  }

  TestDirectory folder_;
  DatasetSplits splits_{striped_images(64, 1), striped_images(20, 2)};
  std::int64_t nan_image_ = -1;
  TrainerOptions quick_{.model = "mlp",
                        .hidden = {16},
                        .epochs = 2,
                        .global_batch = 16,
                        .schedule = {.name = "constant"},
                        .checkpoint_every = 1,
                        .keep = 2,
                        .log_interval = 2};
};

TEST_F(ARunThatDiverges, EndsOnAllRanksAndKeepsItsFiniteCheckpoints) {
  for (const auto change : std::initializer_list<void (*)(TrainerOptions&)>{
           [](TrainerOptions&) {}, [](auto& o) { o.clip_norm = 1e30; },
           [](auto& o) { o.precision = "float16"; },
           [](auto& o) { o.sharded = true; },
           [](auto& o) { o.checkpoint_format = "sharded"; }}) {
    for (const auto& name : checkpoints())
      std::filesystem::remove_all(folder_.path() / name);
    TrainerOptions options = quick_;
    change(options);
    train_on(2, options);
    EXPECT_EQ(checkpoints().size(), 2u);
    const TrainerOptions resumed = resumed_with(options, 1e30);
    const std::string text = refusal_on(2, resumed);
    EXPECT_THAT(
        text,
        AllOf(HasSubstr("training has diverged: "),
              HasSubstr("(epoch 3, step "),
              HasSubstr("the learning rate, 1e+30"), HasSubstr("--on-nan skip"),
              HasSubstr("\"" + folder_.path().string() + "/checkpoint-0000")));
    // Whatever is kept can be resumed, and is finite after that.
    TrainingResult mended;
    EXPECT_EQ(
        error_text([&] { mended = train_on(2, resumed_with(options, 0.01)); }),
        "no error");
    EXPECT_TRUE(std::isfinite(mended.train.mean_loss()));
  }
}

// At the very step that is saved, before any loss shows it.
TEST_F(ARunThatDiverges, IsFoundInFiniteWeightsThatComputeNothingFinite) {
  const auto model = make_model("mlp", {.hidden = {4}});
  run_ranks("shm", 1, [&](const std::shared_ptr<ProcessGroup>& group) {
    const auto found = [&] {
      return first_not_finite(*model, {1, 28, 28}, *group);
    };
    EXPECT_EQ(found(), "");
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : model->parameters()) weight.mul_(1e30);
    EXPECT_EQ(found(), "what the model computes");
    model->named_parameters()["fc2.bias"][3] = kNan;
    EXPECT_EQ(found(), "\"fc2.bias\" of the model");
    EXPECT_TRUE(model->is_training());
  });
}

// Adam divides by it, so that the weights stay as they are.
TEST_F(ARunThatDiverges, IsFoundInTheStateOfAnOptimizerWithFiniteWeights) {
  for (const bool sharded : {false, true})
    run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const at::NoGradGuard no_grad;
      const auto model = make_model("mlp", {.hidden = {4}});
      for (at::Tensor& weight : model->parameters()) weight.fill_(0.01F);
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (sharded)
        optimizer = std::make_unique<ZeroRedundancyOptimizer>(
            model->parameters(), torch::optim::AdamOptions(),
            ZeroRedundancyOptimizerOptions{.group = group});
      else
        optimizer = std::make_unique<torch::optim::Adam>(model->parameters());
      const auto found_after = [&](float gradient) {
        for (at::Tensor& weight : model->parameters())
          weight.mutable_grad() = at::full_like(weight, gradient);
        optimizer->step();
        return first_not_finite(*model, {1, 28, 28}, *group, optimizer.get());
      };
      EXPECT_EQ(found_after(1), "");
      EXPECT_EQ(found_after(1e30F), "the optimizer's state");
    });
}

TEST_F(ARunThatDiverges, IsNotResumedFromAnOptimizersStateThatIsNotFinite) {
  quick_.optimizer = "adam";
  for (const bool sharded : {false, true}) {
    for (const auto& name : checkpoints())
      std::filesystem::remove_all(folder_.path() / name);
    quick_.sharded = sharded;
    train_on(2, quick_);
    spoil_newest("fc2.bias.exp_avg_sq");
    EXPECT_THAT(refusal_on(2, resumed_with(quick_, 0.01)),
                HasSubstr("the optimizer's state is not finite"));
  }
}

TEST_F(ARunThatDiverges, IsNamedByItsFirstLossAlsoWithoutCheckpoints) {
  quick_.checkpoint_dir.clear();
  quick_.checkpoint_every.reset();
  quick_.model = "convnet";
  nan_image_ = 40;
  EXPECT_THAT(
      refusal_on(2, quick_),
      AllOf(HasSubstr("the loss of step "), HasSubstr("(epoch 1, step"),
            HasSubstr("is not finite"), HasSubstr("--checkpoint-dir keeps")));
}

TEST_F(ARunThatDiverges, NamesTheCheckpointThatItBeganWithIfItSavesNone) {
  train_on(2, quick_);
  TrainerOptions options = resumed_with(quick_, 1e30);
  options.resume = CheckpointFolder(folder_.path()).newest()->string();
  options.checkpoint_dir.clear();
  options.checkpoint_every.reset();
  EXPECT_THAT(refusal_on(2, options),
              HasSubstr("--resume \"" + options.resume +
                        "\" goes on from the last finite checkpoint"));
}

TEST_F(ARunThatDiverges, SaysSoAlsoIfItsLastCheckpointWasNotWritten) {
  run_ranks("shm", 1, [&](const std::shared_ptr<ProcessGroup>& group) {
    for_each_replica(quick_, splits_.test, group, [&](TrainedReplica& replica) {
      NanCheck check(quick_, {1, 28, 28}, replica, []() -> std::string {
        throw SystemError("the checkpoint was not written", ENOSPC);
      });
      check.add({.number = 5, .metrics = {.loss = kNan}});
      EXPECT_THAT(error_text<Error>([&] { check.check_losses(); }),
                  AllOf(HasSubstr("training has diverged: "),
                        HasSubstr("also:    the checkpoint was not")));
    });
  });
}

TEST_F(ARunThatDiverges, SkipsStepsOfABadImageIfAsked) {
  quick_.on_nan = "skip";
  quick_.keep = 4;
  splits_.train = striped_images(32, 1);
  nan_image_ = 20;
  for (const char* model : {"mlp", "resnet18"})
    for (const bool sharded : {false, true}) {
      // Its running statistics must not become NaN either.
      if (sharded && model == std::string_view("resnet18")) continue;
      for (const auto& name : checkpoints())
        std::filesystem::remove_all(folder_.path() / name);
      quick_.model = model;
      quick_.sharded = sharded;
      const TrainingResult result = train_on(2, quick_);
      // Once per epoch.
      EXPECT_EQ(result.skipped_steps, 2) << model;
      // A skipped step has changed nothing, so that its state is saved too.
      EXPECT_EQ(checkpoints().size(), 4u) << model;
      EXPECT_TRUE(std::isfinite(result.train.mean_loss())) << model;
      run_ranks("shm", 1, [&](const auto& group) {
        EXPECT_EQ(first_not_finite(*result.model, {1, 28, 28}, *group), "")
            << model;
      });
    }
}

TEST_F(ARunThatDiverges, StopsWhereSkippingDoesNotHelp) {
  quick_.on_nan = "skip";
  quick_.epochs = 40;
  quick_.learning_rate = 1e30;
  EXPECT_THAT(refusal_on(2, quick_), HasSubstr("training has diverged: "));
}

TEST_F(ARunThatDiverges, GoesOnWithoutSavingItIfAsked) {
  train_on(2, quick_);
  const auto before = checkpoints();
  TrainerOptions options = resumed_with(quick_, 1e30);
  options.on_nan = "ignore";
  const TrainingResult result = train_on(2, options);
  EXPECT_FALSE(std::isfinite(result.train.mean_loss()));
  const auto after = checkpoints();
  EXPECT_EQ(after.size(), 2u);
  // The next run resumes from a finite one.
  EXPECT_EQ(error_text([&] { train_on(2, resumed_with(quick_, 0.01)); }),
            "no error");
}

TEST_F(ARunThatDiverges, IsNotResumedFromACheckpointThatAnEarlierVersionSaved) {
  train_on(2, quick_);
  spoil_newest("model.fc2.bias");
  TrainerOptions options = resumed_with(quick_, 0.01);
  EXPECT_THAT(refusal_on(2, options),
              AllOf(HasSubstr("\"fc2.bias\" of the model is not finite"),
                    HasSubstr(checkpoints().back()),
                    HasSubstr("next:    move it out of its folder")));
  options.on_nan = "ignore";
  EXPECT_FALSE(std::isfinite(train_on(2, options).train.mean_loss()));
}

}  // namespace
}  // namespace lockstep
