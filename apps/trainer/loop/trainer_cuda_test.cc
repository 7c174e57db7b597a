// Tests of runs on fake GPUs: see src/torch/testing/fake_cuda.h.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "apps/trainer/loop/trainer.h"
#include "apps/trainer/model/models.h"
#include "apps/trainer/testing/train_on_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"
#include "src/evaluate/testing/striped_images.h"
#include "src/torch/testing/cuda_ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainerOnCuda : public CudaRanks {
 protected:
  // Restores LibTorch's defaults, which belong to the whole process.
  void TearDown() override {
    at::globalContext().setFloat32MatmulPrecision("highest");
    at::globalContext().setAllowTF32CuDNN(true);
    at::globalContext().setDeterministicCuDNN(false);
    at::globalContext().setDeterministicAlgorithms(false, false);
    CudaRanks::TearDown();
  }

  // Runs two processes, or two replicas of one; the tolerance allows for
  // devices that round factors.
  void expect_as_on_cpu(const TrainerOptions& options) {
    const bool rounds = options.compute.tf32 && !is_fake();
    const double tolerance = rounds ? 3e-2 : 1e-4;
    TrainerOptions of_cpu = options;
    of_cpu.compute.tf32 = false;
    of_cpu.cuda_graph = false;
    const auto expected = train_on_ranks(2 / options.replicas, of_cpu, data_);
    const auto learn = [&](const std::shared_ptr<ProcessGroup>& group) {
      TrainerOptions own = options;
      own.device = gpu_of(*group).str();
      const TrainingResult result = train(own, data_, group);
      EXPECT_EQ(result.model->parameters().front().device(), gpu_of(*group));
      const auto learned = on_cpu(result.model->parameters());
      const auto weights = expected.model->parameters();
      for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_LT((learned[i] - weights[i]).abs().max().item<double>(),
                  tolerance)
            << options.strategy;
      EXPECT_EQ(result.test.samples, data_.test.count);
      if (!rounds) {
        EXPECT_EQ(result.test.correct, expected.test.correct);
      }
    };
    if (options.replicas == 2)
      run_process(2, learn);
    else
      run(2, learn);
  }

  // Only the fake draws the CPU's random numbers.
  double dropout() const { return is_fake() ? 0.2 : 0; }

  DatasetSplits data_{striped_images(67, 1), striped_images(33, 2)};
  TrainerOptions quick_{
      .model = "mlp", .hidden = {16}, .epochs = 2, .global_batch = 32};
};

TEST_F(TrainerOnCuda, LearnsWhatTheCpuLearns) {
  expect_as_on_cpu(quick_);
  quick_.optimizer = "adam";
  quick_.learning_rate = 0.003;
  quick_.clip_norm = 0.5;
  quick_.accumulate = 2;
  quick_.dropout = dropout();
  expect_as_on_cpu(quick_);
}

TEST_F(TrainerOnCuda, DropsOnTheDeviceWhatFollowsFromTheSeed) {
  run_process(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    for (const char* name : {"mlp", "cnn"}) {
      const auto model = make_model(name, {.dropout = 0.5});
      model->to(gpu_of(*group));
      const at::Tensor images =
          at::ones({4, 1, 28, 28}, at::Device(gpu_of(*group)));
      const auto logits = [&](std::uint64_t seed) {
        seed_dropout(*model, seed);
        return model->forward(images).detach().cpu();
      };
      const at::Tensor first = logits(1);
      EXPECT_FALSE(first.equal(logits(2))) << name;
      EXPECT_TRUE(first.equal(logits(1))) << name;
    }
  });
}

TEST_F(TrainerOnCuda, StoresImagesAndWeightsChannelsLast) {
  quick_.model = "cnn";
  quick_.hidden.clear();
  quick_.epochs = 1;
  quick_.compute.channels_last = true;
  quick_.compute.tf32 = true;
  expect_as_on_cpu(quick_);
}

TEST_F(TrainerOnCuda, ReplaysPassesThatWereCapturedOnce) {
  quick_.epochs = 4;  // each has two whole batches and a short one
  quick_.cuda_graph = true;
  quick_.clip_norm = 0.5;
  expect_as_on_cpu(quick_);
  quick_.clip_norm.reset();
  quick_.model = "cnn";
  quick_.hidden.clear();
  quick_.dropout = dropout();
  expect_as_on_cpu(quick_);
}

TEST_F(TrainerOnCuda, ReplaysHooksThatRound) {
  data_.train = striped_images(192, 1);  // six whole batches per epoch
  quick_.hook = "bf16";
  run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainerOptions own = quick_;
    own.device = gpu_of(*group).str();
    const auto usual = train(own, data_, group);
    own.cuda_graph = true;
    const auto replayed = train(own, data_, group);
    const auto expected = on_cpu(usual.model->parameters()),
               learned = on_cpu(replayed.model->parameters());
    for (std::size_t i = 0; i < learned.size(); ++i)
      EXPECT_TRUE(learned[i].equal(expected[i])) << i;
    EXPECT_THAT(replayed.compression.value_or(""),
                HasSubstr("gradients were sent"));
  });
}

TEST_F(TrainerOnCuda, ReplaysEveryWholeBatchAfterTheFirstThree) {
  quick_.epochs = 4;
  quick_.cuda_graph = true;
  run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainerOptions own = quick_;
    own.device = gpu_of(*group).str();
    train(own, data_, group);
    int replays = 0;
    for (const auto& one : operations(*group))
      if (one.label == "a captured pass") ++replays;
    EXPECT_EQ(replays, 2 * quick_.epochs - 3);
  });
}

TEST_F(TrainerOnCuda, AugmentsImagesAsTheCpuDoes) {
  quick_.augment = "standard";
  expect_as_on_cpu(quick_);
}

TEST_F(TrainerOnCuda, ShardsAndTakesHorovodsWay) {
  quick_.sharded = true;
  expect_as_on_cpu(quick_);
  quick_.sharded = false;
  for (const char* strategy : {"horovod", "multi-worker"}) {
    quick_.strategy = strategy;
    expect_as_on_cpu(quick_);
  }
}

TEST_F(TrainerOnCuda, ReducesGradientsToWhoUpdatesThemWhenSharded) {
  quick_.sharded = true;
  quick_.epochs = 1;
  quick_.clip_norm = 0.5;
  quick_.checks.consistency_steps = 1;
  run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainerOptions own = quick_;
    own.device = gpu_of(*group).str();
    train(own, data_, group);
    int to_owners = 0;
    for (const auto& one : operations(*group)) {
      if (one.label == "gradients, to their owners") ++to_owners;
      EXPECT_NE(one.label, "gradients of a sharded optimizer");
      EXPECT_FALSE(one.label.starts_with("gradients, bucket")) << one.label;
    }
    EXPECT_GT(to_owners, 0);
  });
}

TEST_F(TrainerOnCuda, HasTheSameBitsOnAnyNumberOfRanksByLogicalShards) {
  quick_.logical_shards = 4;
  quick_.clip_norm = 0.5;
  quick_.dropout = 0.2;
  for (const bool sharded : {false, true}) {
    quick_.sharded = sharded;
    std::vector<at::Tensor> alone;
    for (const int ranks : {1, 2, 4})
      run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
        TrainerOptions own = quick_;
        own.device = gpu_of(*group).str();
        const auto learned =
            on_cpu(train(own, data_, group).model->parameters());
        if (ranks == 1) alone = learned;
        for (std::size_t i = 0; i < learned.size(); ++i)
          EXPECT_TRUE(learned[i].equal(alone[i])) << ranks << " ranks";
      });
  }
}

TEST_F(TrainerOnCuda, HasReplicasOfOneProcess) {
  quick_.replicas = 2;
  quick_.dropout = dropout();
  quick_.accumulate = 2;
  quick_.compute.tf32 = true;
  for (const char* strategy : {"mirrored", "central", "data-parallel"}) {
    quick_.strategy = strategy;
    expect_as_on_cpu(quick_);
  }
  if (!is_fake()) return;
  EXPECT_GT(cuda_->allocated_on(1), 0);
  EXPECT_EQ(cuda_->allocated_on(2), 0);
}

TEST_F(TrainerOnCuda, GoesOnFromACheckpointOfTheCpu) {
  const TestDirectory directory;
  quick_.checkpoint_dir = directory / "cpu";
  quick_.epochs = 1;
  train_on_ranks(2, quick_, data_);
  quick_.checkpoint_dir.clear();
  quick_.resume = (directory / "cpu").string();
  quick_.epochs = 2;
  expect_as_on_cpu(quick_);
  quick_.replicas = 2;
  for (const char* strategy : {"mirrored", "central"}) {
    quick_.strategy = strategy;
    expect_as_on_cpu(quick_);
  }
}

TEST_F(TrainerOnCuda, SavesNoStepThatNcclHasBrokenOff) {
  if (!is_fake()) GTEST_SKIP() << "only the fake fails when told";
  const TestDirectory directory;
  quick_.checkpoint_dir = directory / "checkpoints";
  run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainerOptions own = quick_;
    own.device = gpu_of(*group).str();
    const auto break_off = [&](const ProgressRecord& record) {
      if (std::holds_alternative<StepRecord>(record))
        gpu_.fail_comms_of(0, kGpuPeerLost, "a cable was pulled");
    };
    EXPECT_THAT(error_text([&] { train(own, data_, group, break_off); }),
                HasSubstr("a cable was pulled"));
  });
  EXPECT_TRUE(CheckpointFolder(quick_.checkpoint_dir).files().empty());
}

TEST_F(TrainerOnCuda, SaysWhatToTryWhereMemoryRunsOutInTheMiddle) {
  if (!is_fake()) GTEST_SKIP() << "only the fake can limit its memory";
  quick_.epochs = 4;
  run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    TrainerOptions own = quick_;
    own.device = gpu_of(*group).str();
    const auto fill = [&](const ProgressRecord& record) {
      if (std::holds_alternative<StepRecord>(record)) cuda_->set_room(1, 0);
    };
    const auto learn = [&] { train(own, data_, group, fill); };
    if (group->rank() == 1)
      EXPECT_THAT(
          error_text<SystemError>(learn),
          AllOf(HasSubstr("training ran out of memory on rank 1 of 2"),
                HasSubstr("on cuda:1"),
                HasSubstr("try --accumulate 2, a --global-batch-size below 32, "
                          "--precision bfloat16, --sharded, a smaller model")));
    else
      EXPECT_THAT(error_text<Error>(learn), HasSubstr("rank 1"));
  });
}

TEST_F(TrainerOnCuda, RefusesWhatOneKindOfDeviceHasNot) {
  quick_.compute.tf32 = true;
  EXPECT_THAT(error_text([&] { train_on_ranks(1, quick_, data_); }),
              HasSubstr("only GPUs support TF32"));
  quick_.compute.tf32 = false;
  quick_.device = "cuda";
  for (const char* strategy : {"mirrored", "central", "data-parallel"}) {
    quick_.strategy = strategy;
    quick_.replicas = 32;
    EXPECT_THAT(error_text([&] { train_on_ranks(1, quick_, data_); }),
                HasSubstr("numbered from 0"));
  }
}

}  // namespace
}  // namespace lockstep
