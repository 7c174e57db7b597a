#include "apps/job/device_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "apps/train/train_options.h"
#include "src/base/testing/error_text.h"
#include "src/launch/launcher/launcher.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Flags = std::vector<const char*>;

RankPlace with_gpus(int count) {
  return {.cores = 8, .gpus = [count] { return count; }};
}

TrainOptions parse(const Flags& flags, const RankPlace& place = with_gpus(4)) {
  return parse_train_options(flags, place);
}

std::string refusal(const Flags& flags, const RankPlace& place = with_gpus(4)) {
  return error_text([&] { parse(flags, place); });
}

TEST(DeviceFlags, AreTheCpuUnlessSaidOtherwise) {
  EXPECT_EQ(parse({}).devices.device, "cpu");
  EXPECT_EQ(device_of_rank(parse({}).devices, 3), "cpu");
}

TEST(DeviceFlags, GiveARankToEveryGpu) {
  const TrainOptions options = parse({"--device", "cuda"});
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(device_of_rank(options.devices, 3), "cuda:3");
  EXPECT_EQ(parse({"--device", "cuda", "--ranks", "2"}).ranks, 2);
  EXPECT_EQ(parse({"--device", "cuda"}, {.cores = 8, .world_size = 2}).ranks,
            2);
}

TEST(DeviceFlags, GiveAGpuToEveryReplicaOfOneProcess) {
  const RankPlace in_the_process{
      .cores = 8, .world_size = 1, .gpus = [] { return 4; }};
  for (const char* strategy : {"mirrored", "central", "data-parallel"})
    for (const RankPlace& place : {with_gpus(4), in_the_process}) {
      const auto replicas = [&](Flags flags) {
        flags.insert(flags.end(), {"--strategy", strategy});
        return parse(flags, place).replicas;
      };
      EXPECT_EQ(replicas({"--device", "cuda"}), 4);
      EXPECT_EQ(replicas({"--gpus", "0,2"}), 2);
      EXPECT_EQ(replicas({"--device", "cuda", "-n", "2"}), 2);
    }
}

TEST(DeviceFlags, TakeANumberOfGpusOrAList) {
  EXPECT_EQ(parse({"--gpus", "3", "--batch-size", "8"}).ranks, 3);
  const TrainOptions some = parse({"--gpus", "0,2"});
  EXPECT_EQ(some.ranks, 2);
  EXPECT_EQ(some.devices.device, "cuda");
  EXPECT_EQ(device_of_rank(some.devices, 1),
            "cuda:1");  // of the visible GPUs
}

TEST(DeviceFlags, ShowTheJobTheGpusOfAListAmongThoseThatAreVisible) {
  using Variable = std::optional<std::string>;
  const auto shown = [](const char* gpus, const Variable& before) {
    return visible_devices(parse({"--gpus", gpus}).devices,
                           [=](const std::string&) { return before; });
  };
  EXPECT_EQ(shown("0,2", std::nullopt), "0,2");
  EXPECT_EQ(shown("0,2", "4,5,6"), "4,6");
  EXPECT_EQ(shown("2,0", "GPU-a,GPU-b,GPU-c"), "GPU-c,GPU-a");
  EXPECT_EQ(shown("2", "4,5,6"), std::nullopt);
  EXPECT_THAT(error_text([&] { shown("0,3", "4,5,6"); }),
              AllOf(HasSubstr("0,3"), HasSubstr("4,5,6")));
}

TEST(DeviceFlags, ReplaceTheVariableForWhatIsLaunched) {
  LaunchOptions launch;
  launch.environment = {"CUDA_VISIBLE_DEVICES=4,5,6", "HOME=/"};
  const auto before = [](const std::string&) { return "4,5,6"; };
  apply(parse({"--gpus", "2"}).devices, before, launch);
  EXPECT_THAT(launch.environment,
              ElementsAre("CUDA_VISIBLE_DEVICES=4,5,6", "HOME=/"));
  apply(parse({"--gpus", "0,2"}).devices, before, launch);
  EXPECT_THAT(launch.environment,
              ElementsAre("HOME=/", "CUDA_VISIBLE_DEVICES=4,6"));
}

TEST(DeviceFlags, AreRefusedWhereTheyMeanNothing) {
  for (const char* gpus : {"0", "-1", "two", "0,0", "1,", ",1", "0,x"})
    EXPECT_THAT(refusal({"--gpus", gpus}),
                AllOf(HasSubstr(gpus), HasSubstr("like 0,2")));
  EXPECT_THAT(refusal({"--gpus", "2", "--ranks", "3"}),
              HasSubstr("leave out one"));
  EXPECT_THAT(refusal({"--device", "tpu"}), HasSubstr("tpu"));
  EXPECT_THAT(refusal({"--device", "cuda"}, with_gpus(0)),
              HasSubstr("lockstep doctor"));
  EXPECT_THAT(refusal({"--gpus", "2", "-n", "3", "--strategy", "mirrored"}),
              HasSubstr("leave out one"));
  EXPECT_THAT(refusal({"--gpus", "3", "--logical-shards", "4",
                       "--global-batch-size", "129"},
                      with_gpus(3)),
              HasSubstr("balanced tree"));
}

}  // namespace
}  // namespace lockstep
