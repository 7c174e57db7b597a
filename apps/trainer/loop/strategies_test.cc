// Compares the six strategies: their weights, the options that they support,
// and those that they refuse.
#include "apps/trainer/loop/strategies.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <variant>

#include "apps/trainer/testing/train_on_ranks.h"
#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/named_tensors.h"
#include "src/comm/testing/run_ranks.h"
#include "src/evaluate/testing/striped_images.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kTolerance = 1e-5;

struct StoppedTraining : std::exception {};

// Processes are threads in this test.
TrainingResult train_in(int processes, const TrainerOptions& options,
                        const DatasetSplits& data,
                        const ProgressSink& progress = {}) {
  TrainingResult result;
  run_ranks("shm", processes, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainingResult mine = train(options, data, group, progress);
    if (group->rank() == 0) result = std::move(mine);
  });
  return result;
}

double largest_tensor_difference(const Classifier& a, const Classifier& b) {
  const NamedTensors left = tensors_of(a);
  const NamedTensors right = tensors_of(b);
  double most = 0;
  for (const auto& [name, tensor] : left)
    most = std::max(
        most,
        (tensor.to(at::kDouble) - right.at(name)).abs().max().item<double>());
  return most;
}

class Strategies : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  // On this many ranks: processes, threads or slots.
  TrainingResult train_by(std::string_view strategy, int ranks,
                          TrainerOptions options,
                          const ProgressSink& progress = {}) const {
    options.strategy = strategy;
    if (is_one_process(options.strategy)) options.replicas = ranks;
    return train_in(is_one_process(options.strategy) ? 1 : ranks, options,
                    data_, progress);
  }

  // The largest difference of the weights from DistributedDataParallel's.
  double difference(std::string_view strategy, int ranks) const {
    return largest_tensor_difference(*train_by("ddp", ranks, quick_).model,
                                     *train_by(strategy, ranks, quick_).model);
  }

  // Trains into `folder` until step `stop`, and saves each step before it.
  void stop_at(int stop, std::string_view strategy, TrainerOptions options,
               const std::filesystem::path& folder) const {
    options.checkpoint_dir = folder;
    options.checkpoint_every = 1;
    options.log_interval = 1;
    int step = 0;
    EXPECT_THROW(train_by(strategy, 2, options,
                          [&](const ProgressRecord& record) {
                            if (std::holds_alternative<StepRecord>(record) &&
                                ++step == stop)
                              throw StoppedTraining();
                          }),
                 StoppedTraining);
  }

  TrainingResult resume(std::string_view strategy, TrainerOptions options,
                        const std::filesystem::path& folder) const {
    options.checkpoint_dir = folder;
    options.resume = "auto";
    return train_by(strategy, 2, options);
  }

  // Batches of 24; an epoch's last one is short, and padded on 2 ranks.
  DatasetSplits data_{striped_images(75, 1), striped_images(21, 2)};
  TrainerOptions quick_{.model = "mlp",
                        .hidden = {16},
                        .dropout = 0.3,
                        .epochs = 2,
                        .global_batch = 24,
                        .clip_norm = 0.5,
                        .augment = "standard"};
};

TEST_F(Strategies, ThatAddUpARanksGradientsGiveTheBitsOfDdp) {
  for (const char* optimizer : {"sgd", "adam"})
    for (const int ranks : {1, 2, 4})
      for (const auto* strategy :
           {"horovod", "mirrored", "multi-worker", "central"}) {
        quick_.optimizer = optimizer;
        EXPECT_EQ(difference(strategy, ranks), 0)
            << strategy << ", " << ranks << ", " << optimizer;
      }
}

TEST_F(Strategies, GiveTheWeightsOfDdpOnAnyNumberOfRanks) {
  for (const auto strategy : names_in(kStrategies))
    EXPECT_LT(difference(strategy, 3), kTolerance) << strategy;
  for (const int ranks : {1, 2, 4})
    EXPECT_LT(difference("data-parallel", ranks), kTolerance) << ranks;
}

TEST_F(Strategies, GiveTheWeightsOfDdpInMicroBatches) {
  // Eight slots; a rank's part of the last batch has only two images.
  data_.train = striped_images(52, 1);
  quick_.dropout = 0;  // slots draw in another order
  quick_.accumulate = 8;
  EXPECT_EQ(difference("horovod", 2), 0);
  EXPECT_EQ(difference("mirrored", 2), 0);
  EXPECT_LT(difference("data-parallel", 2), kTolerance);
}

TEST_F(Strategies, HorovodCompressesAsTheHooksOfDdpDo) {
  for (const char* hook : {"fp16", "bf16"}) {
    quick_.hook = hook;
    EXPECT_EQ(difference("horovod", 2), 0) << hook;
  }
  const auto rounded = train_by("horovod", 2, quick_).model;
  quick_.hook = "none";
  EXPECT_GT(largest_tensor_difference(*rounded,
                                      *train_by("horovod", 2, quick_).model),
            0);
}

TEST_F(Strategies, LearnInHalfPrecision) {
  data_ = {striped_images(333, 1), striped_images(103, 2)};
  quick_ = {.model = "mlp", .hidden = {32}, .epochs = 4, .global_batch = 32};
  for (const char* precision : {"bfloat16", "float16"})
    for (const auto strategy : names_in(kStrategies)) {
      quick_.precision = precision;
      const TrainingResult result = train_by(strategy, 2, quick_);
      EXPECT_GT(result.test.accuracy(), 0.95) << strategy << precision;
      EXPECT_EQ(result.skipped_steps, 0) << strategy << precision;
      EXPECT_EQ(result.test.samples, 103) << strategy << precision;
    }
}

TEST_F(Strategies, StoppedAndResumedGiveTheSameBits) {
  for (const auto* strategy :
       {"horovod", "mirrored", "multi-worker", "central", "data-parallel"}) {
    const TrainingResult whole = train_by(strategy, 2, quick_);
    for (const int stop : {2, 6}) {
      const TestDirectory folder;
      stop_at(stop, strategy, quick_, folder.path());
      const TrainingResult resumed = resume(strategy, quick_, folder.path());
      EXPECT_TRUE(resumed.resumed_from) << strategy;
      EXPECT_EQ(largest_tensor_difference(*whole.model, *resumed.model), 0)
          << strategy << " at " << stop;
      EXPECT_EQ(whole.train, resumed.train) << strategy << " at " << stop;
    }
  }
}

TEST_F(Strategies, GoOnWithARunOfAnother) {
  const TrainingResult whole = train_by("ddp", 2, quick_);
  for (const auto* other : {"horovod", "mirrored", "central"}) {
    const TestDirectory folder;
    stop_at(6, "ddp", quick_, folder.path());
    const TrainingResult resumed = resume(other, quick_, folder.path());
    EXPECT_EQ(largest_tensor_difference(*whole.model, *resumed.model), 0)
        << other;
  }
  const TestDirectory folder;
  stop_at(6, "ddp", quick_, folder.path());
  const TrainingResult resumed = resume("data-parallel", quick_, folder.path());
  EXPECT_LT(largest_tensor_difference(*whole.model, *resumed.model),
            kTolerance);
}

TEST_F(Strategies, ReportAsManyRanksAsThereAreReplicas) {
  for (const auto strategy : names_in(kStrategies)) {
    StartRecord start;
    train_by(strategy, 3, quick_, [&](const ProgressRecord& record) {
      if (std::holds_alternative<StartRecord>(record))
        start = std::get<StartRecord>(record);
    });
    EXPECT_EQ(start.ranks, 3) << strategy;
    EXPECT_EQ(start.batch_per_rank, 8) << strategy;
  }
}

TEST_F(Strategies, WithRanksCanBeChecked) {
  for (const auto strategy : names_in(kStrategies)) {
    if (strategy == "data-parallel") continue;
    std::string table;
    quick_.checks = {.consistency_steps = 3,
                     .fingerprint_every = 2,
                     .print = [&](const std::string& text) { table += text; }};
    train_by(strategy, 2, quick_);
    EXPECT_THAT(table, HasSubstr("the ranks are consistent, as far as step 3"))
        << strategy;
  }
}

TEST_F(Strategies, WithRanksSynchronizeBatchNormalization) {
  data_ = {striped_images(8, 1, 24), striped_images(4, 2, 24)};
  quick_ = {.model = "resnet18",
            .epochs = 1,
            .global_batch = 4,
            .sync_batch_norm = true};
  const auto ddp = train_by("ddp", 2, quick_).model;
  for (const auto* strategy : {"mirrored", "horovod"})
    EXPECT_EQ(
        largest_tensor_difference(*ddp, *train_by(strategy, 2, quick_).model),
        0)
        << strategy;
}

TEST_F(Strategies, DataParallelKeepsTheStatisticsOfTheFirstSlot) {
  data_ = {striped_images(8, 1, 24), striped_images(4, 2, 24)};
  quick_ = {.model = "resnet18", .epochs = 1, .global_batch = 4};
  const auto model = train_by("data-parallel", 2, quick_).model;
  EXPECT_EQ(
      model->named_buffers()["bn1.num_batches_tracked"].item<std::int64_t>(),
      2);
}

TEST_F(Strategies, CentralHasOneMemoryAndOneState) {
  quick_.strategy = "central";
  quick_.replicas = 3;
  std::mutex mutex;
  std::set<const void*> memories;
  std::size_t states = 0;
  run_ranks("shm", 1, [&](const std::shared_ptr<ProcessGroup>& group) {
    for_each_replica(quick_, data_.train, group, [&](TrainedReplica& replica) {
      const at::Tensor images = at::ones({2, 1, 28, 28});
      replica.model(images).sum().backward();
      replica.optimizer.optimizer->step();
      const std::scoped_lock lock(mutex);
      memories.insert(replica.model.parameters()[0].const_data_ptr());
      states += replica.optimizer.optimizer->state().size();
    });
  });
  EXPECT_EQ(memories.size(), 1u);
  EXPECT_EQ(states, 4u);  // weight and bias of two layers
}

TEST_F(Strategies, EndWithWhatAReplicaThrew) {
  for (const auto* strategy : {"mirrored", "central", "data-parallel"})
    EXPECT_THROW(train_by(strategy, 3, quick_,
                          [](const ProgressRecord& record) {
                            if (std::holds_alternative<EpochRecord>(record))
                              throw StoppedTraining();
                          }),
                 StoppedTraining)
        << strategy;
}

TEST_F(Strategies, EndWhereOthersWaitInABatchNormalizationOfAllReplicas) {
  quick_ = {.model = "resnet18", .replicas = 2, .sync_batch_norm = true};
  data_.train = striped_images(4, 1, 24);
  for (const auto* strategy : {"mirrored", "central"}) {
    quick_.strategy = strategy;
    EXPECT_THROW(
        run_ranks("shm", 1,
                  [&](const std::shared_ptr<ProcessGroup>& group) {
                    for_each_replica(
                        quick_, data_.train, group,
                        [](const TrainedReplica& replica) {
                          if (replica.local_replica == 1)
                            throw StoppedTraining();
                          // Calls the module itself, without the wrapper's
                          // exchange before a pass.
                          replica.model->forward(at::ones({2, 1, 24, 24}));
                        });
                  }),
        StoppedTraining)
        << strategy;
  }
}

TEST_F(Strategies, RefuseAnotherNumberOfProcessesOrReplicas) {
  for (const auto strategy : names_in(kStrategies)) {
    quick_.strategy = strategy;
    quick_.replicas = is_one_process(quick_.strategy) ? 1 : 2;
    EXPECT_THAT(
        error_text([&] { train_in(2, quick_, data_); }),
        AllOf(HasSubstr("the strategy " + std::string(strategy) + " has "),
              HasSubstr(is_one_process(quick_.strategy) ? "this is one of 2"
                                                        : "not 2"),
              HasSubstr("next:    start ")));
  }
  quick_.strategy = "mirrored";
  quick_.replicas = 0;
  EXPECT_THAT(error_text([&] { train_in(1, quick_, data_); }),
              HasSubstr("cannot have 0 replicas"));
  quick_.replicas = 5;
  EXPECT_THAT(error_text([&] { train_in(1, quick_, data_); }),
              HasSubstr("24 cannot be divided evenly over 5 ranks"));
  quick_.strategy = "mirored";
  EXPECT_THAT(error_text([&] { train_in(1, quick_, data_); }),
              HasSubstr("did you mean \"mirrored\"?"));
}

// apps/options/training_conflicts_test.cc has all pairs.
TEST_F(Strategies, RefuseOptionsThatExcludeEachOther) {
  quick_.sharded = true;
  EXPECT_THAT(error_text([&] { train_by("horovod", 2, quick_); }),
              HasSubstr("--sharded is not for --strategy horovod"));
}

}  // namespace
}  // namespace lockstep
