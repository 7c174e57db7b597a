// The file of a trained model: when it is written, and what it says.
#include "apps/trainer/loop/trained_model.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "apps/trainer/model/saved_model.h"
#include "apps/trainer/testing/train_on_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/testing/run_ranks.h"
#include "src/data/known_datasets.h"
#include "src/evaluate/testing/striped_images.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// Samples of which some are broken files.
class SomeAreBroken final : public SampleSource {
 public:
  SomeAreBroken(std::shared_ptr<const SampleSource> samples,
                std::set<std::int64_t> broken)
      : samples_(std::move(samples)), broken_(std::move(broken)) {}
  std::int64_t size() const override { return samples_->size(); }
  ImageShape shape() const override { return samples_->shape(); }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override {
    if (broken_.contains(index))
      throw InvalidArgument("file " + std::to_string(index) + " is truncated");
    return samples_->read(index, epoch, image);
  }

 private:
  std::shared_ptr<const SampleSource> samples_;
  std::set<std::int64_t> broken_;
};

class TheTrainedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    quick_.output = folder_ / "m.safetensors";
  }

  TrainingData data() const {
    TrainingData data = training_data_of(
        std::make_shared<const DatasetSplits>(splits_), quick_);
    if (!broken_.empty())
      data.test = std::make_shared<const SomeAreBroken>(data.test, broken_);
    return data;
  }

  TrainingResult train_on(int ranks, const ProgressSink& progress = {}) const {
    TrainingResult result;
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      TrainingResult mine = train(quick_, data(), group, progress);
      if (group->rank() == 0) result = std::move(mine);
    });
    return result;
  }

  std::vector<std::string> notes_on(int ranks) const {
    std::vector<std::string> notes;
    train_on(ranks, [&](const ProgressRecord& record) {
      if (const auto* start = std::get_if<StartRecord>(&record))
        notes = start->notes;
    });
    return notes;
  }

  std::map<std::string, std::string> texts() const {
    return load_checkpoint(
        quick_.output,
        *rebuild_model(read_saved_model(quick_.output), splits_.test));
  }

  TestDirectory folder_;
  std::set<std::int64_t> broken_;
  DatasetSplits splits_{striped_images(64, 1), striped_images(20, 2)};
  TrainerOptions quick_{
      .model = "mlp", .hidden = {16}, .epochs = 2, .global_batch = 16};
};

TEST_F(TheTrainedModel, IsSavedBeforeABrokenTestImageEndsTheRun) {
  quick_.evaluate_every = 2;
  broken_ = {7};
  EXPECT_THAT(error_text([&] { train_on(1); }),
              AllOf(HasSubstr("file 7 is truncated"),
                    HasSubstr("saved:   the trained model"),
                    HasSubstr(quick_.output.string())));
  const auto found = texts();
  EXPECT_EQ(found.at("lockstep.epochs"), "2");
  EXPECT_FALSE(found.contains("lockstep.test_accuracy"));
}

TEST_F(TheTrainedModel, IsNamedAlsoOnTheRankWhosePeerFailedToMeasureIt) {
  broken_ = {7};
  quick_.evaluate_every = 2;
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THAT(error_text<Error>([&] { train(quick_, data(), group); }),
                AllOf(HasSubstr("saved:   the trained model is saved in"),
                      HasSubstr(quick_.output.string())));
  });
}

TEST_F(TheTrainedModel, IsMeasuredWithoutTheBrokenImagesThatArePermitted) {
  broken_ = {7, 8, 11};
  quick_.max_broken = 2;
  for (const int ranks : {2, 4}) {
    const TrainingResult result = train_on(ranks);
    EXPECT_EQ(result.test.samples, 17);
    EXPECT_THAT(result.broken_images,
                Contains("3 test images were broken and left out, the first: "
                         "file 7 is truncated"));
    EXPECT_EQ(texts().at("lockstep.test_accuracy"),
              std::to_string(result.test.accuracy()));
  }
  EXPECT_THAT(error_text([&] { train_on(1); }),
              HasSubstr("more than 2 samples of this evaluation are broken"));
}

TEST_F(TheTrainedModel, SaysWhatBecomesOfAnImageBeforeIt) {
  train_on(1);
  EXPECT_EQ(texts().at("lockstep.mean"), "[0.3]");
  EXPECT_EQ(texts().at("lockstep.deviation"), "[0.3]");
  EXPECT_FALSE(texts().contains("lockstep.resize"));
  ImageDataset folder = splits_.test;
  folder.title = kImageFolderTitle;
  folder.height = folder.width = 224;
  folder.mean = {0.485f, 0.456f, 0.406f};
  const auto found = model_metadata("convnet", folder);
  EXPECT_EQ(found.at("lockstep.mean"), "[0.485,0.456,0.406]");
  EXPECT_EQ(found.at("lockstep.resize"), "256");
  EXPECT_EQ(found.at("lockstep.crop"), "224");
  EXPECT_EQ(found.at("lockstep.interpolation"), "bilinear");
}

TEST_F(TheTrainedModel, HasTheStemThatTheRunNamesAtItsStart) {
  splits_.train = striped_images(16, 1);
  quick_.model = "resnet18";
  quick_.hidden.clear();
  quick_.epochs = 1;
  const auto note = [](const std::string& stem) {
    return Contains(HasSubstr("the stem of resnet18 is " + stem + " ("));
  };
  EXPECT_THAT(notes_on(2), note("cifar"));
  EXPECT_EQ(texts().at("lockstep.stem"), "cifar");
  quick_.stem = "imagenet";
  EXPECT_THAT(notes_on(2), note("imagenet"));
  EXPECT_EQ(texts().at("lockstep.stem"), "imagenet");
}

TEST_F(TheTrainedModel, IsResumedWithItsOwnStemOnly) {
  splits_.train = striped_images(16, 1);
  quick_.model = "resnet18";
  quick_.hidden.clear();
  quick_.epochs = 1;
  quick_.checkpoint_dir = folder_ / "runs";
  train_on(1);
  quick_.resume = "auto";
  quick_.epochs = 2;
  quick_.stem = "imagenet";
  EXPECT_THAT(error_text([&] { train_on(1); }),
              AllOf(HasSubstr("stem"), HasSubstr("cifar")));
  quick_.stem = "cifar";
  EXPECT_THAT(notes_on(1), Contains(HasSubstr("went on from " +
                                              quick_.checkpoint_dir.string() +
                                              "/checkpoint-000001")));
}

}  // namespace
}  // namespace lockstep
