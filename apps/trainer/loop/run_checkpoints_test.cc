// Compares a run that is stopped at any step and resumed with one that is not.
#include "apps/trainer/loop/run_checkpoints.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "apps/trainer/testing/train_on_ranks.h"
#include "lockstep/base/error.h"
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
using ::testing::Not;

struct Stopped : std::exception {};

std::string bits_of(const torch::nn::Module& module) {
  std::string bits;
  for (const auto& [name, tensor] : tensors_of(module))
    bits.append(static_cast<const char*>(tensor.const_data_ptr()),
                tensor.nbytes());
  return bits;
}

class StopAndResume : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  // Rank 0's result.
  TrainingResult train_on(int ranks, const TrainerOptions& options,
                          const ProgressSink& progress = {}) const {
    return train_on_ranks(ranks, options, data_, progress);
  }

  // Trains into `folder` until the end of step `stop` of the whole run, before
  // saving that step.
  void stop_at(int stop, int ranks, TrainerOptions options,
               const std::filesystem::path& folder) const {
    options.checkpoint_dir = folder;
    options.log_interval = 1;
    int step = 0;
    EXPECT_THROW(train_on(ranks, options,
                          [&](const ProgressRecord& record) {
                            if (std::holds_alternative<StepRecord>(record) &&
                                ++step == stop)
                              throw Stopped();
                          }),
                 Stopped);
  }

  TrainingResult resume_on(int ranks, TrainerOptions options,
                           const std::filesystem::path& folder) const {
    options.checkpoint_dir = folder;
    options.resume = "auto";
    return train_on(ranks, options);
  }

  // Stops at each of the 10 steps, saving after each, and resumes.
  void expect_same_bits(int ranks, const TrainerOptions& options) const {
    const TrainingResult whole = train_on(ranks, options);
    for (int stop = 1; stop <= kSteps; ++stop) {
      SCOPED_TRACE("stopped at " + std::to_string(stop) + " on " +
                   std::to_string(ranks));
      const TestDirectory folder;
      TrainerOptions saving = options;
      saving.checkpoint_every = 1;
      stop_at(stop, ranks, saving, folder.path());
      expect_same(whole, resume_on(ranks, saving, folder.path()));
    }
  }

  static void expect_same(const TrainingResult& whole,
                          const TrainingResult& resumed) {
    EXPECT_EQ(bits_of(*whole.model), bits_of(*resumed.model));
    EXPECT_EQ(whole.train, resumed.train);
    EXPECT_EQ(whole.test, resumed.test);
    EXPECT_EQ(whole.skipped_steps, resumed.skipped_steps);
  }

  // Five steps per epoch; the last is short, and its size is odd.
  static constexpr int kSteps = 10;
  DatasetSplits data_{striped_images(75, 1), striped_images(21, 2)};
  TrainerOptions quick_{.model = "mlp",
                        .hidden = {16},
                        .dropout = 0.3,
                        .epochs = 2,
                        .global_batch = 16,
                        .accumulate = 2,
                        .clip_norm = 0.5,
                        .augment = "standard"};
};

// All names except the lock file.
std::string names_in(const TestDirectory& directory) {
  std::string names;
  for (const std::string& name : directory.entries())
    if (name != ".lock") names += name;
  return names;
}

TEST_F(StopAndResume, AtAnyStepGivesTheSameBits) {
  for (const int ranks : {1, 2}) expect_same_bits(ranks, quick_);
}

TEST_F(StopAndResume, AtAnyStepGivesTheSameBitsShardedWithAdamInFloat16) {
  quick_.optimizer = "adam";
  quick_.learning_rate = 0.01;
  quick_.precision = "float16";
  quick_.sharded = true;
  for (const int ranks : {1, 2}) expect_same_bits(ranks, quick_);
}

TEST_F(StopAndResume, AtAnyStepGivesTheSameBitsInShards) {
  quick_.checkpoint_format = "sharded";
  for (const int ranks : {1, 2}) expect_same_bits(ranks, quick_);
}

TEST_F(StopAndResume, AtAnyStepGivesTheSameBitsInShardsOfAShardedAdam) {
  quick_.checkpoint_format = "sharded";
  quick_.optimizer = "adam";
  quick_.learning_rate = 0.01;
  quick_.precision = "float16";
  quick_.sharded = true;
  for (const int ranks : {1, 2}) expect_same_bits(ranks, quick_);
}

TEST_F(StopAndResume, GoesOnInShardsWhereOtherRanksAreThreadsOfAStrategy) {
  quick_.checkpoint_format = "sharded";
  quick_.accumulate = 1;
  quick_.checkpoint_every = 1;
  for (const std::string strategy : {"mirrored", "central"}) {
    quick_.strategy = strategy;
    quick_.replicas = 2;
    const TrainingResult whole = train_on(1, quick_);
    const TestDirectory folder;
    stop_at(7, 1, quick_, folder.path());
    expect_same(whole, resume_on(1, quick_, folder.path()));
  }
}

TEST_F(StopAndResume, MayChangeTheFormatOfItsCheckpoints) {
  const TrainingResult whole = train_on(2, quick_);
  const TestDirectory folder;
  quick_.checkpoint_every = 1;
  quick_.checkpoint_format = "sharded";
  stop_at(3, 2, quick_, folder.path());
  quick_.checkpoint_format = "single";
  quick_.resume = (folder / "checkpoint-000002").string();
  stop_at(4, 2, quick_, folder.path());
  quick_.checkpoint_format = "sharded";
  expect_same(whole, resume_on(2, quick_, folder.path()));
  EXPECT_EQ(CheckpointFolder(folder.path()).files(),
            (std::vector<std::filesystem::path>{folder / "checkpoint-000008",
                                                folder / "checkpoint-000009",
                                                folder / "checkpoint-000010"}));
}

TEST_F(StopAndResume, AtAnyStepGivesTheSameBitsWithConvolutionsAndAHook) {
  quick_.model = "cnn";
  quick_.hook = "bf16";
  expect_same_bits(2, quick_);
}

TEST_F(StopAndResume, GivesTheSameRunningStatistics) {
  quick_ = {.model = "resnet18", .epochs = 1, .global_batch = 8};
  data_.train = striped_images(16, 1, 24);
  data_.test = striped_images(4, 2, 24);
  const TrainingResult whole = train_on(2, quick_);
  const TestDirectory folder;
  quick_.checkpoint_every = 1;
  stop_at(2, 2, quick_, folder.path());
  // Statistics of all ranks' samples would be another model's.
  TrainerOptions other = quick_;
  other.sync_batch_norm = true;
  ASSERT_THAT(error_text([&] { resume_on(2, other, folder.path()); }),
              HasSubstr("sync-bn was off, but is on now"));
  expect_same(whole, resume_on(2, quick_, folder.path()));
}

TEST_F(StopAndResume, WithLogicalShardsGivesTheSameBitsOnOtherNumbersOfRanks) {
  quick_.accumulate = 1;
  quick_.logical_shards = 4;
  const TrainingResult whole = train_on(1, quick_);
  const TestDirectory folder;
  quick_.checkpoint_every = 2;
  stop_at(4, 2, quick_, folder.path());
  stop_at(
      3, 4,
      [&] {
        TrainerOptions again = quick_;
        again.resume = "auto";
        again.sharded = true;
        return again;
      }(),
      folder.path());
  const TrainingResult resumed = resume_on(1, quick_, folder.path());
  EXPECT_EQ(bits_of(*whole.model), bits_of(*resumed.model));
  EXPECT_EQ(whole.test, resumed.test);
}

TEST_F(StopAndResume, GoesOnWithTheSameBatchesOnAnotherNumberOfRanks) {
  quick_.dropout = 0;
  data_.train = striped_images(80, 1);
  const TrainingResult whole = train_on(2, quick_);
  for (const int ranks : {1, 4}) {
    const TestDirectory folder;
    quick_.checkpoint_every = 1;
    stop_at(8, 2, quick_, folder.path());
    const TrainingResult resumed = resume_on(ranks, quick_, folder.path());
    const auto one = whole.model->parameters();
    const auto other = resumed.model->parameters();
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_LT((one[i] - other[i]).abs().max().item<double>(), 1e-4) << ranks;
    EXPECT_EQ(resumed.train.samples, whole.train.samples);
    EXPECT_NEAR(resumed.train.loss, whole.train.loss, 1e-3);
  }
}

TEST_F(StopAndResume, SavesAfterEachEpochAndAtTheEndUnlessToldOtherwise) {
  const TestDirectory directory;
  const CheckpointFolder folder(directory.path());
  quick_.checkpoint_dir = directory.path();
  quick_.keep = 9;
  train_on(1, quick_);
  EXPECT_EQ(folder.files().size(), 2u);
  quick_.resume = "auto";
  quick_.checkpoint_every = 4;
  quick_.epochs = 3;  // one more
  const TrainingResult more = train_on(2, quick_);
  EXPECT_EQ(more.resumed_from, folder.files()[1]);
  EXPECT_EQ(folder.files().size(), 4u);            // after steps 12 and 15
  EXPECT_EQ(train_on(2, quick_).test, more.test);  // no step is left
  EXPECT_EQ(folder.files().size(), 4u);
}

TEST_F(StopAndResume, RefusesToSaveAboveTheFolderThatItResumesFrom) {
  const TestDirectory runs;
  quick_.checkpoint_dir = runs.path();
  train_on(1, quick_);  // another run
  const std::string names = names_in(runs);
  quick_.checkpoint_dir = runs / "b";
  quick_.seed = 7;
  train_on(1, quick_);
  quick_.resume = (runs / "b").string();
  quick_.checkpoint_dir = runs.path();
  quick_.keep = 1;
  quick_.epochs = 3;
  EXPECT_THAT(error_text<InvalidArgument>([&] { train_on(1, quick_); }),
              HasSubstr("holds checkpoints of a run already"));
  EXPECT_EQ(names_in(runs), "b" + names);
  // A file of the folder itself is of its run.
  quick_.checkpoint_dir = runs / "b";
  quick_.resume = CheckpointFolder(runs / "b").files().back().string();
  EXPECT_EQ(train_on(1, quick_).resumed_from, quick_.resume);
}

TEST_F(StopAndResume, GoesOnFromAFileInAnotherFolderToo) {
  const TestDirectory first, second;
  quick_.checkpoint_every = 1;
  stop_at(4, 2, quick_, first.path());
  const TrainingResult whole = resume_on(2, quick_, first.path());
  TrainerOptions branch = quick_;
  branch.resume = first / "checkpoint-000009.safetensors";
  branch.checkpoint_dir = second.path();
  const TrainingResult resumed = train_on(2, branch);
  EXPECT_EQ(resumed.resumed_from, branch.resume);
  expect_same(whole, resumed);
  EXPECT_THAT(names_in(second), HasSubstr("checkpoint-"));
}

TEST_F(StopAndResume, RefusesAnotherJobAndSaysWhatDiffers) {
  const TestDirectory folder;
  quick_.checkpoint_every = 1;
  stop_at(3, 2, quick_, folder.path());
  const auto refusal = [&](auto change) {
    TrainerOptions options = quick_;
    change(options);
    return error_text([&] { resume_on(2, options, folder.path()); });
  };
  EXPECT_THAT(refusal([](auto& o) {
                o.global_batch = 32;
                o.seed = 5;
              }),
              AllOf(HasSubstr("belongs to another job"),
                    HasSubstr("global batch size was 16, but is 32 now"),
                    HasSubstr("seed was 0, but is 5 now")));
  EXPECT_THAT(refusal([](auto& o) { o.hidden = {17}; }),
              HasSubstr("hidden was 16, but is 17 now"));
  EXPECT_THAT(refusal([](auto& o) { o.model = "cnn"; }),
              HasSubstr("model was mlp, but is cnn now"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer = "adam"; }),
              HasSubstr("optimizer was sgd, but is adam now"));
  quick_.epochs = 3;
  resume_on(2, quick_, folder.path());
  EXPECT_THAT(refusal([](auto& o) { o.epochs = 2; }),
              HasSubstr("is of epoch 3, but the run ends after 2"));
}

TEST_F(StopAndResume, RefusesOtherImagesOfTheSameNumber) {
  const TestDirectory folder;
  quick_.checkpoint_every = 1;
  stop_at(3, 2, quick_, folder.path());
  const ImageDataset own = data_.train;
  data_.train.images.back() ^= 1;
  const auto refusal = [&] {
    return error_text([&] { resume_on(2, quick_, folder.path()); });
  };
  EXPECT_THAT(refusal(), HasSubstr("checksum of images was "));
  data_.train = own;
  data_.train.labels.front() ^= 1;
  EXPECT_THAT(refusal(), HasSubstr("checksum of images was "));
}

TEST_F(StopAndResume, SaysThatAnEarlierVersionMayHaveMeasuredOtherFiles) {
  const TestDirectory folder;
  quick_.checkpoint_dir = folder.path();
  const auto refusal = [&](const std::string& files) {
    return error_text([&] {
      run_ranks("shm", 1, [&](const std::shared_ptr<ProcessGroup>& group) {
        TrainingData data = training_data_of(
            std::make_shared<const DatasetSplits>(data_), quick_);
        data.files = files;
        data.folders = "train + valid";
        train(quick_, data, group);
      });
    });
  };
  EXPECT_EQ(refusal("1-2"), "no error");
  quick_.resume = "auto";
  EXPECT_THAT(refusal("1-3"),
              AllOf(HasSubstr("files was 1-2, but is 1-3 now"),
                    HasSubstr("which takes train + valid: to go on")));
}

TEST_F(StopAndResume, TakesACheckpointOfAVersionThatDescribedLess) {
  const TestDirectory folder;
  const TrainingResult whole = train_on(2, quick_);
  quick_.checkpoint_every = 1;
  stop_at(3, 2, quick_, folder.path());
  const auto newest = *CheckpointFolder(folder.path()).newest();
  TensorArchive archive = parse_archive(read_bytes(newest), newest.string());
  EXPECT_EQ(archive.metadata.erase("lockstep.job.sync-bn"), 1u);
  EXPECT_EQ(archive.metadata.erase("lockstep.job.checksum of images"), 1u);
  seal(archive);
  write_archive(newest, archive);
  expect_same(whole, resume_on(2, quick_, folder.path()));
}

TEST_F(StopAndResume, TellsNoSpeedOfAnEpochWithoutAStepOfItsOwn) {
  const TestDirectory directory;
  quick_.checkpoint_dir = directory.path();
  quick_.epochs = 1;
  train_on(2, quick_);
  quick_.resume = "auto";
  quick_.epochs = 2;
  std::vector<EpochRecord> epochs;
  train_on(2, quick_, [&](const ProgressRecord& record) {
    if (const auto* epoch = std::get_if<EpochRecord>(&record))
      epochs.push_back(*epoch);
  });
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_FALSE(epochs[0].seconds.has_value());
  EXPECT_FALSE(epochs[0].images_per_second.has_value());
  EXPECT_TRUE(epochs[1].seconds.has_value());
  EXPECT_GT(epochs[1].images_per_second, 0);
}

TEST_F(StopAndResume, RefusesASetWithoutItsManifestBeforeItTrains) {
  const TestDirectory folder;
  quick_.checkpoint_dir = folder.path();
  quick_.checkpoint_format = "sharded";
  quick_.resume = "auto";
  train_on(2, quick_);
  bool has_trained = false;
  const auto train = [&] {
    train_on(2, quick_, [&](const ProgressRecord& record) {
      has_trained |= std::holds_alternative<StepRecord>(record);
    });
  };
  for (const std::string name : {"checkpoint-000010", "checkpoint-000005"}) {
    std::filesystem::remove(folder / name / "manifest.json");
    EXPECT_THAT(error_text<InvalidArgument>(train),
                AllOf(HasSubstr(name), HasSubstr("but no manifest.json"),
                      HasSubstr("next:")));
  }
  EXPECT_FALSE(has_trained);
}

TEST_F(StopAndResume, RefusesToBeginInAFolderThatIsUsed) {
  const TestDirectory folder;
  quick_.checkpoint_dir = folder.path();
  quick_.epochs = 1;
  train_on(2, quick_);
  EXPECT_THAT(error_text([&] { train_on(2, quick_); }),
              AllOf(HasSubstr("holds checkpoints of a run already"),
                    HasSubstr("--resume auto")));
  EXPECT_EQ(names_in(folder), "checkpoint-000005.safetensors");
}

TEST_F(StopAndResume, NamesAMissingCheckpointBeforeAFolderInUse) {
  const TestDirectory folder, elsewhere;
  quick_.checkpoint_dir = folder.path();
  quick_.epochs = 1;
  train_on(1, quick_);
  quick_.resume = elsewhere / "nosuch";
  for (const int ranks : {1, 2})
    EXPECT_THAT(error_text([&] { train_on(ranks, quick_); }),
                AllOf(HasSubstr("nosuch"), HasSubstr("No such file"),
                      Not(HasSubstr("holds checkpoints"))));
}

TEST_F(StopAndResume, DoesNotPushOutAnothersCheckpointsWhereItGoesOnFromAFile) {
  const TestDirectory first, second;
  quick_.epochs = 1;
  for (const auto* folder : {&first, &second}) {
    quick_.checkpoint_dir = folder->path();
    train_on(1, quick_);
  }
  quick_.epochs = 3;
  quick_.keep = 1;
  for (const auto& elsewhere :
       {first.path(), first / "checkpoint-000005.safetensors"}) {
    quick_.resume = elsewhere;
    EXPECT_THAT(error_text([&] { train_on(1, quick_); }),
                AllOf(HasSubstr("holds checkpoints of a run already"),
                      HasSubstr("--resume auto")));
    EXPECT_EQ(names_in(second), "checkpoint-000005.safetensors");
  }
  // It may resume from its own checkpoints, under any path.
  quick_.resume = second / "." / "checkpoint-000005.safetensors";
  train_on(1, quick_);
  EXPECT_EQ(names_in(second), "checkpoint-000015.safetensors");
  quick_.epochs = 4;
  quick_.resume = second.path();
  train_on(1, quick_);
  EXPECT_EQ(names_in(second), "checkpoint-000020.safetensors");
}

// It refuses before training, not at the first save.
TEST_F(StopAndResume, RefusesToGoBackWhereLaterCheckpointsAre) {
  const TestDirectory folder;
  quick_.checkpoint_dir = folder.path();
  train_on(1, quick_);
  quick_.resume = folder / "checkpoint-000005.safetensors";
  bool has_trained = false;
  const auto train = [&] {
    train_on(1, quick_, [&](const ProgressRecord& record) {
      has_trained |= std::holds_alternative<StepRecord>(record);
    });
  };
  EXPECT_THAT(error_text(train),
              AllOf(HasSubstr("holds \"checkpoint-000010.safetensors\", of a "
                              "later step than 5"),
                    HasSubstr("move the later checkpoints out of this one")));
  EXPECT_FALSE(has_trained);
  std::filesystem::remove(folder / "checkpoint-000010.safetensors");
  train();
  EXPECT_EQ(names_in(folder),
            "checkpoint-000005.safetensorscheckpoint-000010.safetensors");
}

TEST_F(StopAndResume, RefusesOptionsThatCannotWork) {
  const TestDirectory directory;
  std::ofstream(directory / "file") << "x";
  const auto refusal = [&](auto change) {
    TrainerOptions options = quick_;
    change(options);
    return error_text<Error>([&] { train_on(2, options); });
  };
  EXPECT_THAT(refusal([](auto& o) { o.keep = 0; }), HasSubstr("at least 1"));
  EXPECT_THAT(refusal([](auto& o) { o.checkpoint_every = 0; }),
              HasSubstr("at least 1"));
  EXPECT_THAT(refusal([](auto& o) { o.resume = "auto"; }),
              HasSubstr("no folder of checkpoints"));
  EXPECT_THAT(refusal([&](auto& o) { o.resume = directory / "absent"; }),
              HasSubstr("No such file"));
  EXPECT_THAT(refusal([&](auto& o) {
                o.checkpoint_dir = directory.path();
                o.hook = "post-local-sgd";
              }),
              HasSubstr("ranks have different models"));
  EXPECT_THAT(refusal([&](auto& o) { o.checkpoint_dir = directory / "file"; }),
              HasSubstr("cannot write"));
}

}  // namespace
}  // namespace lockstep
