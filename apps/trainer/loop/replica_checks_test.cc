#include "apps/trainer/loop/replica_checks.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/trainer/loop/trainer.h"
#include "apps/trainer/testing/train_on_ranks.h"
#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/testing/run_ranks.h"
#include "src/evaluate/testing/striped_images.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Group = std::shared_ptr<ProcessGroup>;

DistributedDataParallel<Classifier> small_model(const Group& group) {
  return DistributedDataParallel<Classifier>(
      make_model("mlp", {.height = 4, .width = 4, .classes = 2, .hidden = {3}}),
      {.group = group});
}

class WatchedRun : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  TrainingResult train_on(int ranks) {
    TrainingResult result;
    run_ranks("shm", ranks, [&](const Group& group) {
      TrainingResult mine = train(options_, data_, group);
      if (group->rank() == 0) result = std::move(mine);
    });
    return result;
  }

  std::string printed_;  // on rank 0
  DatasetSplits data_{striped_images(96, 1), striped_images(20, 2)};
  TrainerOptions options_{.model = "mlp",
                          .hidden = {16},
                          .epochs = 2,
                          .global_batch = 16,
                          .checks = {.consistency_steps = 2,
                                     .fingerprint_every = 2,
                                     .print = [this](const std::string& text) {
                                       printed_ += text;
                                     }}};
};

TEST_F(WatchedRun, IsConsistentWhateverTheWayOfTraining) {
  const auto run = [&](const std::string& what) {
    printed_.clear();
    EXPECT_NO_THROW(train_on(2)) << what;
    EXPECT_THAT(printed_, AllOf(HasSubstr("consistency of 2 ranks  "),
                                HasSubstr("gradients, reduced"),
                                HasSubstr("consistent, as far as step 2")))
        << what;
  };
  run("plain");
  options_.sharded = true;
  options_.clip_norm = 0.5;
  run("sharded, clipped");
  options_.sharded = false;
  options_.accumulate = 3;
  run("micro-batches, clipped");
  options_.accumulate = 1;
  options_.precision = "float16";
  run("float16");
  options_.precision = "float32";
  options_.hook = "power-sgd";
  run("power-sgd");
  options_.hook = "none";
  options_.logical_shards = 4;
  run("logical shards");
}

TEST_F(WatchedRun, OfAResidualNetworkIsThatOfOneRankWithSyncBn) {
  data_ = {striped_images(32, 1, 24), striped_images(10, 2, 24)};
  options_.model = "resnet18";
  options_.epochs = 1;
  options_.learning_rate = 0.01;
  options_.schedule.name = "constant";
  options_.sync_batch_norm = true;
  const TrainingResult one = train_on(1);
  printed_.clear();
  const TrainingResult two = train_on(2);
  EXPECT_THAT(printed_, ContainsRegex("\n  buffers +equal +equal"));
  const auto expected = one.model->named_buffers();
  for (const auto& item : two.model->named_buffers()) {
    const at::Tensor theirs = expected[item.key()].to(at::kDouble);
    const at::Tensor ours = item.value().to(at::kDouble);
    EXPECT_LE((ours - theirs).abs().max().item<double>(),
              2e-3 * (1 + theirs.abs().max().item<double>()))
        << item.key();
  }
}

TEST_F(WatchedRun, LooksAtTheWeightsOnlyOnceThoseToGoOnWithAreLoaded) {
  const TestDirectory directory;
  options_.checkpoint_dir = directory.path();
  options_.epochs = 1;
  train_on(2);
  printed_.clear();
  options_.resume = "auto";
  options_.seed = 3;  // another job
  EXPECT_THAT(error_text<Error>([&] { train_on(2); }),
              HasSubstr("belongs to another job"));
  EXPECT_THAT(printed_, IsEmpty());
  options_.seed = 0;
  options_.epochs = 2;
  train_on(2);
  EXPECT_THAT(printed_, AllOf(HasSubstr("consistency of 2 ranks  "),
                              HasSubstr("consistent, as far as step 2")));
}

TEST_F(WatchedRun, RefusesWhatDoesNotGoTogether) {
  const auto refusal = [&] { return error_text([&] { train_on(2); }); };
  options_.hook = "post-local-sgd";
  EXPECT_THAT(refusal(), HasSubstr("differ on purpose"));
  options_.hook = "none";
  options_.sync_batch_norm = true;
  EXPECT_THAT(refusal(), HasSubstr("has no batch normalization"));
  options_.logical_shards = 2;
  EXPECT_THAT(refusal(), HasSubstr("depend on the number of ranks"));
  options_ = {.model = "mlp",
              .global_batch = 16,
              .checks = {.consistency_steps = 1, .show = {"fc"}}};
  EXPECT_THAT(refusal(), HasSubstr("unknown parameter \"fc\""));
}

TEST(ReplicaChecks, EndsARunThatIsWrongFromTheStart) {
  run_ranks("shm", 2, [](const Group& group) {
    auto model = small_model(group);
    if (group->rank() == 1) {
      const at::NoGradGuard no_grad;
      model.parameters()[0][0][0] += 1;
    }
    std::string printed;
    EXPECT_THAT(
        error_text<Mismatch>([&] {
          ReplicaChecks(
              {.consistency_steps = 1,
               .print = [&](const std::string& text) { printed += text; }},
              model, false);
        }),
        AllOf(HasSubstr("initial weights, before step 1"),
              HasSubstr("[0, 0] is")));
    if (group->rank() == 0)
      EXPECT_THAT(printed, HasSubstr("different  <-- WRONG"));
    else
      EXPECT_THAT(printed, IsEmpty());
  });
}

TEST(ReplicaChecks, EndsARunWhoseReplicasPartLater) {
  run_ranks("shm", 3, [](const Group& group) {
    auto model = small_model(group);
    ReplicaChecks checks({.fingerprint_every = 3}, model, false);
    EXPECT_EQ(checks.report(), nullptr);
    checks.step_done();
    if (group->rank() == 2) {
      const at::NoGradGuard no_grad;
      model.parameters()[1][2] += 1;
    }
    EXPECT_NO_THROW(checks.step_done());
    EXPECT_THAT(
        error_text<Mismatch>([&] { checks.step_done(); }),
        AllOf(HasSubstr("differ after step 3"), HasSubstr("rank 2 from most")));
  });
}

TEST(ReplicaChecks, CountTheStepsThatWereMadeBeforeTheRunWentOn) {
  run_ranks("shm", 2, [](const Group& group) {
    auto model = small_model(group);
    ReplicaChecks checks({.fingerprint_every = 5}, model, false, 8);
    if (group->rank() == 1) {
      const at::NoGradGuard no_grad;
      model.parameters()[1][2] += 1;
    }
    EXPECT_NO_THROW(checks.step_done());
    EXPECT_THAT(error_text<Mismatch>([&] { checks.step_done(); }),
                HasSubstr("differ after step 10"));
  });
}

}  // namespace
}  // namespace lockstep
