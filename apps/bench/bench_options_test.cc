#include "apps/bench/bench_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

BenchOptions parse(const std::vector<const char*>& arguments,
                   const RankPlace& place = {.cores = 4}) {
  return parse_bench_options(arguments, place);
}

std::string error_of(const std::vector<const char*>& arguments,
                     const RankPlace& place = {.cores = 4}) {
  const std::string text = error_text([&] { parse(arguments, place); });
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  return text;
}

TEST(BenchOptions, ACollectiveIsEnough) {
  const BenchOptions options = parse({"all_reduce"});
  EXPECT_EQ(options.wanted.collective, BenchCollective::kAllReduce);
  EXPECT_EQ(options.wanted.type, DataType::kFloat32);
  EXPECT_EQ(options.wanted.op, ReduceOp::kSum);
  EXPECT_EQ(options.wanted.memory, Engine::Memory::kShared);
  EXPECT_EQ(options.backend, "auto");
  EXPECT_EQ(options.devices.device, "cpu");
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(options.sizes.front(), 4u);
  EXPECT_EQ(options.sizes.back(), std::size_t{100} << 20);
}

TEST(BenchOptions, EveryFlagArrives) {
  const BenchOptions options = parse({"reduce_scatter",
                                      "--backend",
                                      "shm",
                                      "--bytes",
                                      "1K..1M",
                                      "--step-factor",
                                      "32",
                                      "--dtype",
                                      "bfloat16",
                                      "--op=average",
                                      "--memory",
                                      "plain",
                                      "--iters",
                                      "7",
                                      "--json",
                                      "--plot",
                                      "p.svg",
                                      "-o",
                                      "t.json",
                                      "--ranks",
                                      "3",
                                      "--bind",
                                      "none"});
  EXPECT_EQ(options.wanted.collective, BenchCollective::kReduceScatter);
  EXPECT_EQ(options.wanted.type, DataType::kBFloat16);
  EXPECT_EQ(options.wanted.op, ReduceOp::kAverage);
  EXPECT_EQ(options.wanted.memory, Engine::Memory::kPlain);
  EXPECT_THAT(options.sizes, ElementsAre(1024u, 32768u, 1048576u));
  EXPECT_EQ(options.iterations, 7);
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.plot, "p.svg");
  EXPECT_EQ(options.output, "t.json");
  EXPECT_EQ(options.ranks, 3);
}

TEST(BenchOptions, ThereAreTwoRanksAtLeastUnlessOneIsAskedFor) {
  EXPECT_EQ(parse({"barrier"}, {.cores = 1}).ranks, 2);
  EXPECT_EQ(parse({"barrier", "-n", "1"}).ranks, 1);
  EXPECT_EQ(parse({"barrier"}, {.cores = 1, .world_size = 6}).ranks, 6);
  EXPECT_THAT(error_of({"barrier", "-n", "3"}, {.world_size = 2}),
              AllOf(HasSubstr("--ranks is 3"), HasSubstr("one of 2 ranks")));
  EXPECT_THAT(error_of({"send_recv", "-n", "1"}), HasSubstr("two ranks"));
}

const RankPlace kThreeGpus{.cores = 4, .gpus = [] { return 3; }};

TEST(BenchOptions, ThereIsARankForEachGpuUnlessSaidOtherwise) {
  const BenchOptions all =
      parse({"all_reduce", "--device", "cuda"}, kThreeGpus);
  EXPECT_EQ(all.devices.device, "cuda");
  EXPECT_EQ(all.ranks, 3);
  EXPECT_EQ(parse({"all_reduce", "--gpus", "0,2"}, kThreeGpus).ranks, 2);
  EXPECT_EQ(parse({"all_reduce", "--gpus=2", "--backend=nccl"}, kThreeGpus)
                .devices.device,
            "cuda");
  EXPECT_EQ(parse({"all_reduce", "--device", "cuda", "-n", "1"}).ranks, 1);
  EXPECT_EQ(parse({"all_reduce", "--gpus=2", "--memory=plain"}, kThreeGpus)
                .wanted.memory,
            Engine::Memory::kPlain);
  EXPECT_EQ(parse({"all_reduce", "--device", "cuda"}, {.world_size = 2}).ranks,
            2);
}

TEST(BenchOptions, OnGpusWhatOnlyTheCpuHasIsRefused) {
  const auto refusal = [](std::vector<const char*> more) {
    std::vector<const char*> arguments{"all_reduce", "--device", "cuda"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return error_of(arguments, kThreeGpus);
  };
  for (const char* backend : {"shm", "gloo", "all"})
    EXPECT_THAT(refusal({"--backend", backend}),
                AllOf(HasSubstr(backend), HasSubstr("leave --backend out")));
  EXPECT_THAT(refusal({"--gpus", "2", "-n", "3"}), HasSubstr("leave out one"));
  EXPECT_THAT(error_of({"barrier", "--gpus", "2"}, kThreeGpus),
              HasSubstr("leave out --device"));
  EXPECT_THAT(error_of({"send_recv", "--gpus", "1"}, kThreeGpus),
              HasSubstr("two ranks"));
  EXPECT_THAT(error_of({"all_reduce", "--device", "tpu"}),
              HasSubstr("cpu, cuda"));
  EXPECT_THAT(error_of({"all_reduce", "--backend", "nccl"}),
              HasSubstr("add --device cuda"));
  EXPECT_THAT(
      error_of({"all_reduce", "--device", "cuda"}, {.gpus = [] { return 0; }}),
      HasSubstr("lockstep doctor"));
}

TEST(BenchOptions, SizesAreNumbersRangesAndLists) {
  EXPECT_THAT(parse_sizes("64", 4), ElementsAre(64u));
  EXPECT_THAT(parse_sizes("4..100", 4), ElementsAre(4u, 16u, 64u, 100u));
  EXPECT_THAT(parse_sizes("4..64", 4), ElementsAre(4u, 16u, 64u));
  EXPECT_THAT(parse_sizes("8..8", 2), ElementsAre(8u));
  EXPECT_THAT(parse_sizes("1M,4,1K,4", 4), ElementsAre(4u, 1024u, 1048576u));
}

TEST(BenchOptions, UnitsArePowersOf1024) {
  EXPECT_EQ(parse_bytes("7B"), 7u);
  EXPECT_EQ(parse_bytes("3K"), 3072u);
  EXPECT_EQ(parse_bytes("3KiB"), 3072u);
  EXPECT_EQ(parse_bytes("25M"), 26214400u);
  EXPECT_EQ(parse_bytes("2GiB"), std::size_t{1} << 31);
  EXPECT_EQ(describe_bytes(26214400), "25 MiB");
  EXPECT_EQ(describe_bytes(1023), "1023 B");
}

TEST(BenchOptions, WrongSizesAreRefusedWithWhatWouldDo) {
  EXPECT_THAT(error_of({"all_reduce", "--bytes", "10MB"}),
              AllOf(HasSubstr("--bytes"), HasSubstr("unknown unit \"MB\""),
                    HasSubstr("did you mean \"MiB\"?")));
  EXPECT_THAT(error_of({"all_reduce", "--bytes", "1Mib"}),
              HasSubstr("did you mean \"MiB\"?"));
  EXPECT_THAT(error_of({"all_reduce", "--bytes", "1M..4"}),
              HasSubstr("begins above its end"));
  for (const char* text :
       {"", "..", "4..", "..4", "-1", "0", "1.5M", "K", "4,,8", "4 K", "two",
        "99999999999999999999", "2000G", "4..8..16"})
    EXPECT_THAT(error_of({"all_reduce", "--bytes", text}),
                HasSubstr("--bytes: "))
        << text;
  EXPECT_THAT(error_of({"all_reduce", "--step-factor", "1"}),
              HasSubstr("--step-factor"));
}

TEST(BenchOptions, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_THAT(error_of({"allreduce"}),
              HasSubstr("did you mean \"all_reduce\"?"));
  EXPECT_THAT(error_of({"all_reduce", "--backend", "shn"}),
              HasSubstr("did you mean \"shm\"?"));
  EXPECT_THAT(error_of({"all_reduce", "--dtype", "float23"}),
              HasSubstr("did you mean \"float"));
  EXPECT_THAT(error_of({"all_reduce", "--op", "summ"}),
              HasSubstr("did you mean \"sum\"?"));
  EXPECT_THAT(error_of({"all_reduce", "--memory", "heap"}),
              HasSubstr("shared, plain"));
  EXPECT_THAT(error_of({"all_reduce", "--iter", "3"}),
              HasSubstr("did you mean \"--iters\"?"));
  EXPECT_THAT(error_of({"all_reduce", "barrier"}), HasSubstr("\"barrier\""));
  EXPECT_THAT(error_of({}), HasSubstr("bench needs a collective"));
}

TEST(BenchOptions, WhatDoesNotFitTogetherIsRefused) {
  EXPECT_THAT(error_of({"all_gather", "--op", "max"}),
              HasSubstr("reduces nothing"));
  EXPECT_THAT(error_of({"all_reduce", "--op", "average", "--dtype", "int32"}),
              HasSubstr("not defined on int32"));
  EXPECT_THAT(error_of({"barrier", "--plot", "p.svg"}), HasSubstr("--plot"));
}

}  // namespace
}  // namespace lockstep
