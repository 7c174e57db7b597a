#include "apps/train/strategy_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "apps/testing/parse_train_flags.h"
#include "src/base/testing/lookup_in.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kThreeWorkers =
    R"({"cluster": {"worker": ["a:1", "b:1", "c:1"]},
        "task": {"type": "worker", "index": 1}})";

TEST(StrategyFlags, SayWhatTheRanksAre) {
  EXPECT_EQ(parse_train({}).strategy, "ddp");
  for (const char* strategy : {"ddp", "horovod", "multi-worker"}) {
    const TrainOptions options =
        parse_train({"--strategy", strategy}, {.cores = 4});
    EXPECT_EQ(options.ranks, 4) << strategy;
    EXPECT_EQ(options.replicas, 1) << strategy;
  }
  for (const char* strategy : {"mirrored", "central", "data-parallel"}) {
    EXPECT_EQ(parse_train({"--strategy", strategy}, {.cores = 4}).replicas, 4)
        << strategy;
    const TrainOptions options = parse_train(
        {"--strategy", strategy, "-n", "2"}, {.cores = 4, .world_size = 1});
    EXPECT_EQ(options.replicas, 2) << strategy;
    EXPECT_EQ(options.batch_size, 64) << strategy;
  }
}

TEST(StrategyFlags, RefuseAnUnknownStrategy) {
  EXPECT_THAT(train_error({"--strategy", "horovd"}),
              HasSubstr("did you mean \"horovod\"?"));
}

TEST(StrategyFlags, RefuseSeveralProcessesWhereThreadsAreMeant) {
  for (const char* strategy : {"mirrored", "central", "data-parallel"})
    EXPECT_THAT(train_error({"--strategy", strategy, "-n", "2"},
                            {.cores = 4, .world_size = 2}),
                AllOf(HasSubstr("all ranks in one process"),
                      HasSubstr("started as one of 2"),
                      HasSubstr("use --strategy multi-worker")));
}

TEST(StrategyFlags, RefuseABatchThatTheReplicasCannotDivide) {
  EXPECT_THAT(train_error({"--strategy", "mirrored", "-n", "3"}),
              HasSubstr("128 cannot be divided over 3 ranks"));
}

TEST(StrategyFlags, TakeTheNumberOfWorkersFromTfConfig) {
  const RankPlace place{.cores = 4,
                        .lookup = lookup_in({{"TF_CONFIG", kThreeWorkers}})};
  EXPECT_EQ(
      parse_train({"--strategy=multi-worker", "--batch-size=8"}, place).ranks,
      3);
  EXPECT_EQ(
      parse_train({"--strategy=multi-worker", "--batch-size=8", "-n3"}, place)
          .ranks,
      3);
  EXPECT_THAT(train_error({"--strategy=multi-worker", "-n2"}, place),
              HasSubstr("-n is 2, but TF_CONFIG names 3 workers"));
  EXPECT_EQ(
      parse_train(
          {"--strategy=multi-worker", "--batch-size=8", "--device=cuda"}, place)
          .ranks,
      3);
  EXPECT_THAT(train_error({"--strategy=multi-worker", "--gpus=1"}, place),
              HasSubstr("CUDA_VISIBLE_DEVICES"));
  // Other strategies do not read TF_CONFIG.
  EXPECT_EQ(parse_train({"--strategy=horovod"}, place).ranks, 4);
}

TEST(StrategyFlags, RefuseATfConfigThatIsWrongOrContradictsTheEnvironment) {
  const auto error_with = [](std::map<std::string, std::string> variables) {
    return train_error({"--strategy=multi-worker"},
                       {.cores = 4, .lookup = lookup_in(std::move(variables))});
  };
  EXPECT_THAT(
      error_with({{"TF_CONFIG", "{cluster"}}),
      AllOf(HasSubstr("not a JSON object"), HasSubstr("next:    set it")));
  EXPECT_THAT(
      error_with(
          {{"TF_CONFIG", kThreeWorkers}, {"RANK", "0"}, {"WORLD_SIZE", "3"}}),
      AllOf(
          HasSubstr("it makes the rank 1, but torchrun or lockstep run says 0"),
          HasSubstr("unset TF_CONFIG")));
}

}  // namespace
}  // namespace lockstep
