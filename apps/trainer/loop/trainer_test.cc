#include "apps/trainer/loop/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <mutex>
#include <set>
#include <utility>
#include <variant>

#include "apps/trainer/loop/gradient_traffic.h"
#include "apps/trainer/testing/train_on_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/group/same_job.h"
#include "src/comm/testing/run_ranks.h"
#include "src/evaluate/testing/striped_images.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Trainer : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  // Trains on `ranks` ranks and returns rank 0's result.
  TrainingResult train_on(int ranks, const TrainerOptions& options,
                          const ProgressSink& progress = {}) const {
    return train_on_ranks(ranks, options, data_, progress);
  }

  std::string refusal_on(int ranks, const TrainerOptions& options) const {
    return error_text([&] { train_on(ranks, options); });
  }

  // Neither count is a multiple of the batch or of the ranks.
  DatasetSplits data_{striped_images(333, 1), striped_images(103, 2)};
  TrainerOptions quick_{
      .model = "mlp", .hidden = {32}, .epochs = 4, .global_batch = 32};
};

double largest_difference(const Classifier& a, const Classifier& b) {
  const auto left = a.parameters();
  const auto right = b.parameters();
  double most = 0;
  for (std::size_t i = 0; i < left.size(); ++i)
    most = std::max(most, (left[i] - right[i]).abs().max().item<double>());
  return most;
}

TEST_F(Trainer, LearnsOnAnyNumberOfRanksAndCountsEachTestSampleOnce) {
  for (const int ranks : {1, 2, 4, 8}) {
    const TrainingResult result = train_on(ranks, quick_);
    EXPECT_GT(result.test.accuracy(), 0.95) << ranks;
    EXPECT_EQ(result.test.samples, data_.test.count) << ranks;
  }
}

TEST_F(Trainer, LearnsWithAdam) {
  quick_.optimizer = "adam";
  quick_.learning_rate = 0.003;
  EXPECT_GT(train_on(2, quick_).test.accuracy(), 0.95);
}

TEST_F(Trainer, BeginsWithWeightsFromAFileByEveryStrategy) {
  const TestDirectory folder;
  quick_.output = folder / "first.safetensors";
  const TrainingResult first = train_on(1, quick_);
  EXPECT_FALSE(first.layers_begun_anew.has_value());
  quick_.weights = std::exchange(quick_.output, {});
  quick_.epochs = 1;
  quick_.learning_rate = 1e-9;
  quick_.seed = 5;
  const auto begins_there = [&](int ranks) {
    const TrainingResult second = train_on(ranks, quick_);
    EXPECT_THAT(second.layers_begun_anew.value(), ElementsAre());
    EXPECT_LT(largest_difference(*second.model, *first.model), 1e-6);
    EXPECT_EQ(second.test.accuracy(), first.test.accuracy());
  };
  for (const char* strategy : {"ddp", "horovod", "multi-worker"}) {
    SCOPED_TRACE(quick_.strategy = strategy);
    begins_there(2);
  }
  quick_.replicas = 3;
  quick_.global_batch = 33;
  for (const char* strategy : {"mirrored", "central", "data-parallel"}) {
    SCOPED_TRACE(quick_.strategy = strategy);
    begins_there(1);
  }
}

TEST_F(Trainer, BeginsTheLastLayerAnewForOtherClasses) {
  const TestDirectory folder;
  quick_.output = folder / "first.safetensors";
  train_on(1, quick_);
  quick_.weights = std::exchange(quick_.output, {});
  for (ImageDataset* set : {&data_.train, &data_.test})
    set->class_names.emplace_back("none");
  EXPECT_THAT(train_on(2, quick_).layers_begun_anew.value(),
              ElementsAre("fc2"));
  quick_.hidden = {31};
  EXPECT_THAT(refusal_on(2, quick_),
              HasSubstr("does not fit the model to train"));
}

TEST_F(Trainer, GivesOneRanksWeightsOnSeveral) {
  // Ten and a half batches, without padding on any number of ranks.
  data_.train = striped_images(336, 1);
  for (const char* model : {"mlp", "cnn", "convnet"}) {
    quick_.model = model;
    quick_.dropout = 0;
    quick_.epochs = 2;
    const TrainingResult one = train_on(1, quick_);
    for (const int ranks : {2, 4}) {
      const TrainingResult several = train_on(ranks, quick_);
      EXPECT_LT(largest_difference(*one.model, *several.model), 1e-4)
          << model << ranks;
    }
  }
}

TEST_F(Trainer, DropsWhatTheLogicalShardsOfTheRanksNumbersDo) {
  quick_.dropout = 0.3;
  quick_.epochs = 1;
  for (const int ranks : {1, 2}) {
    quick_.logical_shards.reset();
    const TrainingResult usual = train_on(ranks, quick_);
    quick_.logical_shards = ranks;
    const TrainingResult shards = train_on(1, quick_);
    EXPECT_LT(largest_difference(*usual.model, *shards.model), 1e-4) << ranks;
  }
}

TEST_F(Trainer, LearnsTheSameWithChannelsLastButForRounding) {
  const TestDirectory directory;
  for (const char* model : {"cnn", "convnet"}) {
    quick_.model = model;
    quick_.hidden.clear();
    quick_.epochs = 1;
    quick_.dropout = 0;
    quick_.compute.channels_last = false;
    const auto usual = train_on(2, quick_);
    quick_.compute.channels_last = true;
    quick_.output = directory / "model.safetensors";
    const auto last = train_on(2, quick_);
    EXPECT_LT(largest_difference(*usual.model, *last.model), 2e-3) << model;
    auto loaded = make_model(model, {.seed = 99});
    load_checkpoint(quick_.output, *loaded);
    EXPECT_EQ(largest_difference(*loaded, *last.model), 0) << model;
  }
}

TEST_F(Trainer, GivesTheSameWeightsInMicroBatchesAndSharded) {
  quick_.epochs = 2;
  // No padding on any number of ranks.
  data_.train = striped_images(336, 1);
  const TrainingResult plain = train_on(1, quick_);
  for (const int ranks : {1, 2})
    for (const int accumulate : {2, 4})
      for (const bool sharded : {false, true}) {
        quick_.accumulate = accumulate;
        quick_.sharded = sharded;
        quick_.find_unused = !sharded;
        const TrainingResult other = train_on(ranks, quick_);
        EXPECT_LT(largest_difference(*plain.model, *other.model), 1e-4)
            << accumulate << " on " << ranks << ", sharded " << sharded;
      }
}

TEST_F(Trainer, LearnsInFloat16OnlyWithStepsThatDoNotOverflow) {
  quick_.precision = "float16";
  for (const bool sharded : {false, true}) {
    quick_.sharded = sharded;
    const TrainingResult result = train_on(2, quick_);
    EXPECT_GT(result.test.accuracy(), 0.95);
    EXPECT_EQ(result.skipped_steps, 0);
  }
}

TEST_F(Trainer, LearnsInBfloat16ShardedAndClipped) {
  quick_.precision = "bfloat16";
  quick_.sharded = true;
  quick_.clip_norm = 1;
  EXPECT_GT(train_on(2, quick_).test.accuracy(), 0.95);
}

TEST_F(Trainer, LearnsWithEachHookAndEndsWithOneModel) {
  for (const auto hook : names_in(kHooks)) {
    quick_.hook = hook;
    std::array<TrainingResult, 2> results;
    run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
      results[static_cast<std::size_t>(group->rank())] =
          train(quick_, data_, group);
    });
    EXPECT_GT(results[0].test.accuracy(), 0.95) << hook;
    EXPECT_EQ(largest_difference(*results[0].model, *results[1].model), 0)
        << hook;
    const bool compresses = hook != "none" && hook != "post-local-sgd";
    EXPECT_EQ(results[0].compression.has_value(), compresses) << hook;
  }
}

TEST(GradientTraffic, TrainsApartWithPostLocalSgdAndSettles) {
  run_ranks("shm", 2, [](const std::shared_ptr<ProcessGroup>& group) {
    DistributedDataParallel<Classifier> model(make_model("mlp", {.height = 4,
                                                                 .width = 4,
                                                                 .classes = 2,
                                                                 .hidden = {4},
                                                                 .dropout = 0}),
                                              {.group = group});
    GradientTraffic traffic("post-local-sgd", model, 10);
    const auto differs = [&] {
      at::Tensor least = model.parameters().back().detach().clone();
      at::Tensor most = least.clone();
      all_reduce(*group, least, ReduceOp::kMin).wait();
      all_reduce(*group, most, ReduceOp::kMax).wait();
      return !least.equal(most);
    };
    std::vector<bool> differing;
    for (int step = 0; step < 4; ++step) {
      model.zero_grad();
      (model(at::ones({1, 1, 4, 4})).sum() * (group->rank() + 1.0)).backward();
      {
        const at::NoGradGuard no_grad;
        for (at::Tensor& parameter : model.parameters())
          parameter.sub_(parameter.grad(), 0.01);
      }
      traffic.step_done();
      differing.push_back(differs());
    }
    // Gradients are averaged twice, models after the third step.
    EXPECT_THAT(differing, ElementsAre(false, false, false, true));
    traffic.settle();
    EXPECT_FALSE(differs());
  });
}

TEST_F(Trainer, SaysHowMuchLessWasSent) {
  quick_.epochs = 1;
  quick_.hook = "bf16";
  EXPECT_THAT(train_on(2, quick_).compression.value_or(""),
              HasSubstr("2.0 times fewer bytes than the gradients"));
}

// Whether two models have the same parameters and buffers, to the bit.
void expect_same_bits(const Classifier& a, const Classifier& b,
                      const std::string& job) {
  EXPECT_EQ(largest_difference(a, b), 0) << job;
  const auto theirs = b.named_buffers();
  for (const auto& item : a.named_buffers())
    EXPECT_TRUE(at::equal(item.value(), theirs[item.key()]))
        << job << ": " << item.key();
}

TEST_F(Trainer, WithLogicalShardsGivesTheSameBitsOnAnyNumberOfRanks) {
  // Dropout, augmentation, a last batch that is short, and padding.
  quick_.model = "convnet";
  quick_.epochs = 2;
  quick_.augment = "standard";
  quick_.logical_shards = 4;
  data_.train = striped_images(75, 1);
  const TrainingResult alone = train_on(1, quick_);
  for (const int ranks : {2, 4})
    expect_same_bits(*alone.model, *train_on(ranks, quick_).model, "convnet");
  quick_.sharded = true;
  for (const int ranks : {1, 2, 4})
    expect_same_bits(*alone.model, *train_on(ranks, quick_).model, "sharded");
}

TEST_F(Trainer, WithLogicalShardsClipsAlikeInEveryPrecision) {
  quick_.epochs = 1;
  quick_.dropout = 0.2;
  quick_.clip_norm = 0.3;
  quick_.logical_shards = 4;
  for (const char* optimizer : {"sgd", "adam"})
    for (const char* precision : {"float32", "bfloat16", "float16"}) {
      quick_.optimizer = optimizer;
      quick_.precision = precision;
      quick_.sharded = false;
      const TrainingResult alone = train_on(1, quick_);
      for (const int ranks : {2, 4}) {
        quick_.sharded = ranks == 4;
        expect_same_bits(*alone.model, *train_on(ranks, quick_).model,
                         std::string(optimizer) + " in " + precision);
      }
    }
}

TEST_F(Trainer, WithLogicalShardsGivesResidualNetworksTheSameStatistics) {
  quick_.model = "resnet18";
  quick_.epochs = 1;
  quick_.global_batch = 8;
  quick_.logical_shards = 4;
  data_.train = striped_images(16, 1, 24);
  data_.test = striped_images(4, 2, 24);
  const TrainingResult alone = train_on(1, quick_);
  EXPECT_EQ(alone.model->named_buffers()["bn1.num_batches_tracked"]
                .item<std::int64_t>(),
            2);
  for (const int ranks : {2, 4}) {
    quick_.sharded = ranks == 4;
    expect_same_bits(*alone.model, *train_on(ranks, quick_).model, "resnet18");
  }
}

TEST_F(Trainer, TrainsResidualNetworksToTheSameStatisticsOnAllRanks) {
  quick_.model = "resnet18";
  quick_.epochs = 1;
  quick_.global_batch = 16;
  data_.train = striped_images(48, 1);
  data_.test = striped_images(10, 2);
  std::array<TrainingResult, 2> results;
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    results[static_cast<std::size_t>(group->rank())] =
        train(quick_, data_, group);
  });
  EXPECT_TRUE(std::isfinite(results[0].train.mean_loss()));
  EXPECT_EQ(results[0].test.samples, 10);
  EXPECT_EQ(largest_difference(*results[0].model, *results[1].model), 0);
  const auto ours = results[0].model->named_buffers();
  const auto theirs = results[1].model->named_buffers();
  for (const auto& item : ours)
    EXPECT_TRUE(at::equal(item.value(), theirs[item.key()])) << item.key();
  EXPECT_EQ(ours["bn1.num_batches_tracked"].item<std::int64_t>(), 3);
}

TEST_F(Trainer, RepeatsARunBitForBitWithItsSeedOnly) {
  quick_.model = "convnet";
  quick_.epochs = 1;
  quick_.augment = "standard";
  const TrainingResult one = train_on(2, quick_);
  EXPECT_EQ(largest_difference(*one.model, *train_on(2, quick_).model), 0);
  ++quick_.seed;
  EXPECT_GT(largest_difference(*one.model, *train_on(2, quick_).model), 0);
}

TEST_F(Trainer, ReportsStartStepsAndEpochsInThisOrderFromRankZero) {
  quick_.epochs = 2;
  quick_.evaluate_every = 2;
  std::vector<ProgressRecord> records;
  const auto keep = [&](const ProgressRecord& r) { records.push_back(r); };
  const TrainingResult result = train_on(2, quick_, keep);
  ASSERT_EQ(records.size(), 7u);
  const auto& start = std::get<StartRecord>(records[0]);
  EXPECT_EQ(start.ranks, 2);
  // run_ranks() makes two hosts of one name.
  EXPECT_EQ(start.hosts, 2);
  EXPECT_EQ(start.batch_per_rank, 16);
  EXPECT_EQ(start.train_images, 333);
  EXPECT_EQ(std::get<StepRecord>(records[1]).step, 10);
  EXPECT_EQ(std::get<StepRecord>(records[2]).step, 11);
  EXPECT_EQ(std::get<StepRecord>(records[2]).steps, 11);
  EXPECT_FALSE(std::get<EpochRecord>(records[3]).test_accuracy.has_value());
  const auto& last = std::get<EpochRecord>(records[6]);
  EXPECT_EQ(last.epoch, 2);
  EXPECT_EQ(last.test_accuracy, result.test.accuracy());
  EXPECT_EQ(last.train_loss, result.train.mean_loss());
}

TEST_F(Trainer, SavesTheTrainedModel) {
  const TestDirectory directory;
  quick_.output = directory / "runs/model.safetensors";
  const TrainingResult result = train_on(2, quick_);
  const auto loaded = make_model("mlp", {.hidden = {32}, .seed = 9});
  const auto metadata = load_checkpoint(quick_.output, *loaded);
  EXPECT_EQ(metadata.at("lockstep.model"), "mlp");
  EXPECT_EQ(largest_difference(*result.model, *loaded), 0);
}

TEST_F(Trainer, RefusesAnOutputThatCannotBeWrittenBeforeItTrains) {
  const TestDirectory directory;
  quick_.output = directory.path();
  int records = 0;
  EXPECT_THROW(train_on(2, quick_, [&](const auto&) { ++records; }), Error);
  EXPECT_EQ(records, 0);
}

TEST_F(Trainer, OnAFullDiskFailsOnEveryRankAndKeepsTheEarlierFile) {
  const TestDirectory directory;
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "64k");
  quick_.output = directory / "model";
  std::ofstream(quick_.output) << "old";
  quick_.epochs = 1;
  quick_.global_batch = 30;
  std::atomic<int> told = 0;
  run_ranks("shm", 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    try {
      train(quick_, data_, group);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
      ++told;
    }
  });
  EXPECT_EQ(told, 3);
  EXPECT_EQ(contents(quick_.output), "old");
  EXPECT_THAT(directory.entries(), ElementsAre("model"));
}

TEST_F(Trainer, RefusesWhatCannotWorkAndSaysWhy) {
  const auto with = [&](auto change) {
    TrainerOptions options = quick_;
    change(options);
    return refusal_on(2, options);
  };
  EXPECT_THAT(with([](auto& o) { o.global_batch = 0; }),
              HasSubstr("a global batch of 0 has no images"));
  EXPECT_THAT(with([](auto& o) { o.global_batch = 31; }),
              HasSubstr("a global batch of 31 cannot be divided"));
  EXPECT_THAT(
      with([](auto& o) { o.global_batch = 334; }),
      AllOf(HasSubstr("333 images, fewer than one global batch of 334"),
            HasSubstr("next:    give --global-batch-size 332 or less")));
  EXPECT_THAT(with([](auto& o) { o.epochs = 0; }), HasSubstr("at least 1"));
  EXPECT_THAT(with([](auto& o) { o.model = "mlpp"; }),
              HasSubstr("unknown model \"mlpp\""));
  EXPECT_THAT(with([](auto& o) { o.optimizer = "sdg"; }),
              HasSubstr("unknown optimizer \"sdg\""));
  EXPECT_THAT(with([](auto& o) { o.schedule.name = "cosin"; }),
              HasSubstr("unknown schedule \"cosin\""));
  EXPECT_THAT(with([](auto& o) { o.schedule.warmup_epochs = 1; }),
              HasSubstr("a warm-up of its own"));
  EXPECT_THAT(with([](auto& o) { o.accumulate = 17; }),
              HasSubstr("16 images, cannot be divided into 17 micro-batches"));
  EXPECT_THAT(with([](auto& o) { o.accumulate = 0; }),
              HasSubstr("0 micro-batches"));
  EXPECT_THAT(with([](auto& o) { o.logical_shards = 5; }),
              HasSubstr("divided evenly into 5 logical shards"));
  EXPECT_THAT(with([](auto& o) { o.logical_shards = 1; }),
              HasSubstr("do not form a balanced tree"));
  EXPECT_THAT(with([](auto& o) {
                o.logical_shards = 2;
                o.accumulate = 2;
              }),
              HasSubstr("micro-batches already"));
  EXPECT_THAT(with([](auto& o) { o.clip_norm = 0; }), HasSubstr("norm of 0"));
  EXPECT_THAT(with([](auto& o) { o.hook = "fp8"; }),
              HasSubstr("unknown hook \"fp8\""));
  EXPECT_THAT(with([](auto& o) {
                o.hook = "fp16";
                o.sharded = true;
              }),
              HasSubstr("--hook fp16 is not for --sharded"));
  EXPECT_THAT(with([](auto& o) { o.precision = "half"; }),
              HasSubstr("unknown precision \"half\""));
  EXPECT_THAT(with([](auto& o) { o.learning_rate = -1; }),
              HasSubstr("learning rate"));
}

TEST_F(Trainer, RefusesRanksWithDifferentOptionsOrDataOnEveryRank) {
  const auto refusal_of = [&](const auto& change) {
    std::mutex mutex;
    std::set<std::string> texts;
    run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
      TrainerOptions options = quick_;
      DatasetSplits data = data_;
      if (group->rank() == 1) change(options, data);
      const auto text =
          error_text<DifferentJobs>([&] { train(options, data, group); });
      const std::lock_guard lock(mutex);
      texts.insert(text);
    });
    return texts.size() == 1 ? *texts.begin() : "different messages";
  };
  EXPECT_THAT(refusal_of([](auto& o, auto&) { o.learning_rate = 0.001; }),
              HasSubstr("--lr is 0.05 on rank 0 and 0.001 on rank 1\n"));
  EXPECT_THAT(refusal_of([](auto& o, auto&) { o.global_batch = 1; }),
              HasSubstr("--global-batch-size is 32 on rank 0 and 1 on rank 1"));
  EXPECT_THAT(refusal_of([](auto& o, auto&) { o.dropout = 0.5; }),
              HasSubstr("--dropout is the model's on rank 0 and 0.5 on rank"));
  EXPECT_THAT(refusal_of([](auto& o, auto&) { o.momentum = 0; }),
              HasSubstr("--momentum is 0.9 on rank 0 and 0 on rank 1"));
  EXPECT_THAT(refusal_of([](auto& o, auto&) { o.resume = "auto"; }),
              HasSubstr("--resume is not given on rank 0 and auto on rank 1"));
  EXPECT_THAT(refusal_of([](auto&, auto& d) { d.train.title = "MNIST"; }),
              HasSubstr("the data set is "));
  EXPECT_THAT(
      refusal_of([](auto&, auto& d) { d.test = striped_images(104, 2); }),
      HasSubstr("the number of test images is 103 on rank 0 and 104 on rank"));
}

TEST_F(Trainer, RefusesFewerImagesThanRanks) {
  data_.train = striped_images(3, 1);
  quick_.global_batch = 4;
  EXPECT_THAT(refusal_on(4, quick_), HasSubstr("has 3 images"));
}

}  // namespace
}  // namespace lockstep
