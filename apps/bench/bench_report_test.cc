#include "apps/bench/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

BackendRows rows_of(std::string name,
                    const std::vector<std::pair<std::size_t, int>>& times) {
  BackendRows backend{.name = std::move(name), .rows = {}, .left_out = ""};
  for (const auto& [bytes, microseconds] : times) {
    const std::chrono::microseconds time(microseconds);
    backend.rows.push_back(
        {.bytes = bytes,
         .timings = {.p50 = time, .p99 = 2 * time, .mean = time, .rounds = 9},
         .bandwidth = bandwidth(BenchCollective::kAllReduce, 2, bytes, time)});
  }
  return backend;
}

std::vector<std::pair<std::size_t, std::string>> fastest(
    std::vector<BackendRows> backends) {
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const auto& range :
       fastest_backends({.what = {}, .ranks = 2, .backends = backends}))
    found.emplace_back(range.bytes,
                       fmt::format("{}", fmt::join(range.backends, " ")));
  return found;
}

TEST(BenchReport, SaysFromWhichSizeOnABackendIsFastest) {
  EXPECT_THAT(fastest({rows_of("a", {{4, 10}, {64, 20}, {1024, 90}}),
                       rows_of("b", {{4, 30}, {64, 30}, {1024, 40}})}),
              ElementsAre(Pair(4u, "a"), Pair(1024u, "b")));
}

TEST(BenchReport, TakesAHairsBreadthForNoise) {
  EXPECT_THAT(fastest({rows_of("a", {{4, 100}, {64, 100}, {1024, 100}}),
                       rows_of("b", {{4, 150}, {64, 97}, {1024, 150}})}),
              ElementsAre(Pair(4u, "a")));
}

// Issue 21, point 8: on one host hybrid is shm.
TEST(BenchReport, NamesAllThatAreEquallyFast) {
  EXPECT_THAT(fastest({rows_of("a", {{4, 100}, {64, 98}, {1024, 100}}),
                       rows_of("b", {{4, 99}, {64, 100}, {1024, 101}}),
                       rows_of("c", {{4, 300}, {64, 300}, {1024, 30}})}),
              ElementsAre(Pair(4u, "a b"), Pair(1024u, "c")));
}

TEST(BenchReport, GoesOnWithoutABackendThatGaveUp) {
  EXPECT_THAT(
      fastest({rows_of("a", {{4, 10}}), rows_of("b", {{4, 30}, {64, 30}})}),
      ElementsAre(Pair(4u, "a"), Pair(64u, "b")));
}

TEST(BenchReport, TellsWhoWasLeftOutAndWhy) {
  BenchReport report{.what = {}, .ranks = 2, .backends = {}};
  report.backends.push_back(rows_of("a", {{4, 10}}));
  report.backends.push_back(
      {.name = "b", .rows = {}, .left_out = "it is not there"});
  EXPECT_THAT(table_end(report), HasSubstr("b left out: it is not there"));
  EXPECT_THAT(table_end(report), Not(HasSubstr("fastest")));
  EXPECT_THAT(to_json(report), HasSubstr("\"left_out\": \"it is not there\""));
}

TEST(BenchReport, SaysWhatIsInPlaceAndOnWhichDevice) {
  BenchReport report{.what = {.collective = BenchCollective::kAllGather},
                     .ranks = 2,
                     .backends = {}};
  EXPECT_THAT(table_head(report),
              HasSubstr("all_gather of float32, 2 ranks, shared memory"));
  EXPECT_THAT(to_json(report), AllOf(HasSubstr("\"device\": \"cpu\""),
                                     HasSubstr("\"memory\": \"shared\""),
                                     HasSubstr("\"in_place\": false")));
  report.what.collective = BenchCollective::kAllReduce;
  report.device = "cuda";
  report.libraries = "CUDA 1, NCCL 2";
  EXPECT_THAT(table_head(report),
              HasSubstr("all_reduce, sum of float32, in place, 2 ranks, on "
                        "cuda (CUDA 1, NCCL 2); every"));
  EXPECT_THAT(to_json(report), AllOf(HasSubstr("\"device\": \"cuda\""),
                                     Not(HasSubstr("\"memory\"")),
                                     HasSubstr("\"in_place\": true")));
  EXPECT_THAT(
      gnuplot_script(report, "p.svg"),
      HasSubstr(
          "set title 'all_reduce, sum of float32, in place, 2 ranks on cuda'"));
}

TEST(BenchReport, PlotsOneLineABackendThatMeasured) {
  BenchReport report{.what = {}, .ranks = 2, .backends = {}};
  report.backends.push_back(rows_of("a", {{4, 10}, {1000, 50}}));
  report.backends.push_back({.name = "b", .rows = {}, .left_out = "no"});
  const std::string script = gnuplot_script(report, "it's.svg");
  EXPECT_THAT(
      script,
      AllOf(HasSubstr("$backend0 << END\n4 10\n1000 50\nEND"),
            HasSubstr("plot $backend0 using 1:2 title 'a'"),
            HasSubstr("set logscale xy"), HasSubstr("set terminal svg"),
            HasSubstr("set output 'it''s.svg'"), Not(HasSubstr("$backend1"))));
  EXPECT_THAT(gnuplot_script(report, "p.png"), HasSubstr("terminal pngcairo"));
}

}  // namespace
}  // namespace lockstep
