#include "apps/scale/scale_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>

#include "apps/job/flags.h"
#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr int kCores = 4;

TrainRequest job(std::vector<std::string> arguments, int ranks = 2) {
  // With it, the caller's number of threads would be the row's.
  ::unsetenv("OMP_NUM_THREADS");
  return scaled_job(std::move(arguments), {.ranks = ranks, .threads = 3},
                    "m.safetensors", kCores);
}

ScaleOptions completed(ScaleOptions options) {
  complete_scale_options(options, kCores);
  return options;
}

TEST(ScaleOptions, AskForPowersOfTwoUpToTheCores) {
  EXPECT_THAT(completed({}).ranks, ElementsAre(1, 2, 4));
  EXPECT_THAT(completed({.ranks = {3, 1}}).ranks, ElementsAre(1, 3));
}

std::vector<std::pair<int, int>> layouts(const ScaleOptions& options) {
  std::vector<std::pair<int, int>> found;
  for (const ScaleLayout& layout : layouts_of(completed(options), kCores))
    found.emplace_back(layout.ranks, layout.threads);
  return found;
}

TEST(ScaleOptions, GiveRanksOfAllRowsTheSameThreads) {
  EXPECT_THAT(layouts({}), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(4, 1)));
  EXPECT_THAT(layouts({.ranks = {1, 2}}), ElementsAre(Pair(1, 2), Pair(2, 2)));
  EXPECT_THAT(layouts({.ranks = {1, 8}}), ElementsAre(Pair(1, 1), Pair(8, 1)));
}

TEST(ScaleOptions, DivideTheCoresInEveryWay) {
  EXPECT_THAT(layouts({.layouts = true}),
              ElementsAre(Pair(1, 4), Pair(2, 2), Pair(4, 1)));
  EXPECT_THAT(error_text([] { completed({.ranks = {2}, .layouts = true}); }),
              HasSubstr("leave out --ranks and --against"));
}

TEST(ScaleOptions, RefuseWhatDoesNotFitTogether) {
  EXPECT_THAT(error_text([] {
                completed({.ranks = {2, 1, 2}});
              }),
              HasSubstr("names 2 twice; --repeats"));
  EXPECT_THAT(error_text([] { completed({.against_pattern = "(x)"}); }),
              HasSubstr("needs --against"));
  EXPECT_THAT(error_text([] { completed({.against = "python3 train.py"}); }),
              HasSubstr("write {ranks}"));
  EXPECT_THAT(error_text([] {
                completed({.against = "a {ranks}", .against_pattern = "("});
              }),
              HasSubstr("is not a regular expression"));
  EXPECT_THAT(error_text([] {
                completed({.against = "a {ranks}", .against_pattern = "x"});
              }),
              HasSubstr("must have one group"));
}

TEST(ScaleOptions, TakeAListOfRanksWithoutEmptyEntries) {
  const auto ranks = [](const char* list) {
    CLI::App command;
    ScaleOptions options;
    add_scale_options(command, options);
    parse_flags(command, std::array{"-n", list});
    return options.ranks;
  };
  EXPECT_THAT(ranks("1,2"), ElementsAre(1, 2));
  EXPECT_THAT(error_text([&] { ranks("1,,2"); }),
              HasSubstr("\"\" is not a whole number from 1 to 1024"));
}

TEST(ScaleOptions, LetTorchrunLearnTheRanksFromItsEnvironment) {
  EXPECT_EQ(completed({.against = "torchrun train.py"}).against,
            "torchrun train.py");
}

TEST(AScaledJob, HasTheThreadsOfItsRowUnlessTheUserSaysOtherwise) {
  const ScaleLayout row{.ranks = 2, .threads = 3, .threads_vary = true};
  EXPECT_EQ(scaled_job({}, row, "m", kCores).options.threads, 3);
  EXPECT_EQ(job({"--threads", "5"}).options.threads, 5);
  EXPECT_THAT(
      error_text([&] { scaled_job({"--threads=5"}, row, "m", kCores); }),
      HasSubstr("leave --threads out"));
}

TEST(AScaledJob, KeepsTheGlobalBatchUnlessARanksIsGiven) {
  EXPECT_EQ(job({}, 1).options.global_batch, 128);
  EXPECT_EQ(job({}, 4).options.global_batch, 128);
  EXPECT_EQ(job({}, 4).options.batch_size, 32);
  EXPECT_EQ(job({"--batch-size", "16"}, 4).options.global_batch, 64);
}

TEST(AScaledJob, HandsItsFlagsOnToEachRank) {
  const TrainRequest request = job({"--model", "mlp"}, 4);
  EXPECT_EQ(request.options.model, "mlp");
  EXPECT_EQ(request.options.ranks, 4);
  EXPECT_THAT(request.arguments,
              ElementsAre("--model", "mlp", "--epochs=2", "--threads=3",
                          "--ranks=4", "--output=m.safetensors", "--no-hints"));
  EXPECT_THAT(job({"--epochs=7"}).arguments,
              ElementsAre("--epochs=7", "--threads=3", "--ranks=2",
                          "--output=m.safetensors", "--no-hints"));
}

TEST(AScaledJob, RefusesWhatIsNotForFiguresAlone) {
  for (const char* flag :
       {"--output", "--checkpoint-dir", "--resume", "--log-dir"})
    EXPECT_THAT(error_text([&] {
                  job({flag, "3"});
                }),
                AllOf(HasSubstr(flag), HasSubstr("leave it out")));
}

TEST(AScaledJob, NamesFlagsThatNobodyKnows) {
  EXPECT_THAT(error_text([] {
                job({"--epoch", "3"});
              }),
              AllOf(HasSubstr("lockstep scale"), HasSubstr("--epochs")));
}

TEST(AScaledJob, RefusesABatchThatCannotBeDivided) {
  EXPECT_THAT(error_text([] {
                job({"--global-batch-size", "64"}, 3);
              }),
              HasSubstr("cannot be divided over 3 ranks"));
}

TEST(Throughput, IsTheLastThatAnOutputSays) {
  const auto find = [](const std::string& output) {
    return find_throughput(output, kThroughputPattern);
  };
  EXPECT_EQ(find("epoch 1: 900.5 images/s\nepoch 2: 1,234.5 images/s\nend"),
            1234.5);
  EXPECT_EQ(find("812 samples per second"), 812);
  EXPECT_EQ(find("97 img/sec, 3 s"), 97);
  EXPECT_EQ(find("12 examples / s"), 12);
  EXPECT_EQ(find("1.23e+03 images/s"), 1230);
  EXPECT_EQ(find(" 1%| 5.1 images/s\r99%| 64.2 images/s"), 64.2);
  EXPECT_EQ(find("then 41 images/s, now 43 images/s"), 43);
  EXPECT_EQ(find("60000 images in 3 s"), std::nullopt);
  EXPECT_EQ(find("45.6 img/sec per CPU"), std::nullopt);
  EXPECT_EQ(find("812 images/s/GPU"), std::nullopt);
  EXPECT_EQ(find("812,5 images/s"), std::nullopt);
  EXPECT_EQ(find("1_234.5 images/s"), std::nullopt);
  EXPECT_EQ(find(std::string(1 << 20, 'x')), std::nullopt);
  EXPECT_EQ(find("0 images/s"), std::nullopt);
  EXPECT_EQ(find("1e999 images/s"), std::nullopt);
  EXPECT_EQ(find_throughput("speed=inf", "speed=(.+)"), std::nullopt);
  EXPECT_EQ(find_throughput("speed=41.5;", "speed=([0-9.]+)"), 41.5);
}

TEST(WithRanks, ReplacesEveryPlace) {
  EXPECT_EQ(with_ranks("a -n {ranks} --tag={ranks}", 16), "a -n 16 --tag=16");
  EXPECT_EQ(with_ranks("ranks={ranks}; a ${ranks}", 4), "ranks=4; a ${ranks}");
}

}  // namespace
}  // namespace lockstep
