#include "apps/bench/bench_measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/bench_group_engine.h"
#include "apps/bench/bench_pattern.h"
#include "lockstep/base/error.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::DoubleEq;

std::vector<BenchCollective> all_collectives() {
  std::vector<BenchCollective> all;
  for (const auto name : kCollectiveNames)
    all.push_back(find_collective(name).value());
  return all;
}

TEST(BenchMeasure, VerifiesEveryCollectiveOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks("shm", ranks, [&](std::shared_ptr<ProcessGroup> group) {
      GroupEngine engine(std::move(group));
      for (const BenchCollective collective : all_collectives()) {
        if (collective == BenchCollective::kSendRecv && ranks == 1) continue;
        for (const std::size_t bytes : {std::size_t{1}, std::size_t{70'000}}) {
          const Timings timings = measure_collective(
              engine, {.collective = collective, .bytes = bytes},
              {.rounds = 2});
          EXPECT_EQ(timings.rounds, 2);
          EXPECT_GE(timings.p99, timings.p50);
        }
      }
    });
  }
}

TEST(BenchMeasure, VerifiesEveryReductionOnEveryType) {
  run_ranks("shm", 3, [&](std::shared_ptr<ProcessGroup> group) {
    GroupEngine engine(std::move(group));
    for (const DataType type : kAllDataTypes)
      for (const ReduceOp op : kAllReductions)
        if (is_defined(op, type))
          measure_collective(engine,
                             {.type = type,
                              .op = op,
                              .memory = Engine::Memory::kPlain,
                              .bytes = 3000},
                             {.rounds = 1});
  });
}

// Behaves like a group, except for the fault that a test injects.
class BrokenEngine : public GroupEngine {
 public:
  using GroupEngine::GroupEngine;

  std::function<void(const CollectiveCall&)> sabotage =
      [](const CollectiveCall&) {};
  bool idle = false;

  void run(const CollectiveCall& call) override {
    if (!idle) GroupEngine::run(call);
    sabotage(call);
  }
};

void measure_broken(std::shared_ptr<ProcessGroup> group,
                    BenchCollective collective,
                    const std::function<void(BrokenEngine&)>& break_it) {
  BrokenEngine engine(std::move(group));
  break_it(engine);
  measure_collective(engine, {.collective = collective, .bytes = 8192},
                     {.rounds = 3});
}

TEST(BenchMeasure, NoticesOneWrongElement) {
  EXPECT_THROW(
      run_ranks("shm", 2,
                [](std::shared_ptr<ProcessGroup> group) {
                  measure_broken(
                      std::move(group), BenchCollective::kAllReduce,
                      [](BrokenEngine& engine) {
                        engine.sabotage = [](const CollectiveCall& call) {
                          reinterpret_cast<float*>(call.output)[2000] += 1;
                        };
                      });
                }),
      InternalError);
}

TEST(BenchMeasure, NoticesBlocksThatChangedPlaces) {
  EXPECT_THROW(
      run_ranks("shm", 2,
                [](std::shared_ptr<ProcessGroup> group) {
                  measure_broken(
                      std::move(group), BenchCollective::kAllGather,
                      [](BrokenEngine& engine) {
                        engine.sabotage = [](const CollectiveCall& call) {
                          auto* data = reinterpret_cast<float*>(call.output);
                          std::swap_ranges(data, data + call.count,
                                           data + call.count);
                        };
                      });
                }),
      InternalError);
}

TEST(BenchMeasure, NoticesAResultThatIsLeftFromAnEarlierRound) {
  int calls = 0;
  EXPECT_THROW(run_ranks("shm", 1,
                         [&](std::shared_ptr<ProcessGroup> group) {
                           measure_broken(
                               std::move(group), BenchCollective::kAllGather,
                               [&](BrokenEngine& engine) {
                                 engine.sabotage = [&](const CollectiveCall&) {
                                   engine.idle = ++calls > 3;
                                 };
                               });
                         }),
               InternalError);
  EXPECT_EQ(calls, 5);
}

TEST(BenchMeasure, PreparesBeforeEveryRoundAndVerifiesTheFirstAndTheLast) {
  run_ranks("shm", 1, [](std::shared_ptr<ProcessGroup> group) {
    GroupEngine engine(std::move(group));
    std::string order;
    const Round round{
        .prepare = [&](std::uint64_t n) { order += "p" + std::to_string(n); },
        .run = [&] { order += "r"; },
        .verify = [&](std::uint64_t n) { order += "v" + std::to_string(n); }};
    time_rounds(engine, round, {.rounds = 2});
    EXPECT_EQ(order, "p0rv0p1rp2rp3rv3");
  });
}

TEST(BenchMeasure, VerifiesARoundOfOneCallWhereSeveralAreTimed) {
  run_ranks("shm", 1, [](std::shared_ptr<ProcessGroup> group) {
    GroupEngine engine(std::move(group));
    std::string order;
    const Round round{
        .prepare = [&](std::uint64_t n) { order += "p" + std::to_string(n); },
        .run = [&] { order += "r"; },
        .verify = [&](std::uint64_t n) { order += "v" + std::to_string(n); },
        .run_timed =
            [&] {
              order += "t";
              return 4;
            }};
    const Timings timings = time_rounds(engine, round, {.rounds = 2});
    EXPECT_EQ(order, "p0rv0p1tp2tp3tp4rv4");
    EXPECT_EQ(timings.calls, 4);
    EXPECT_EQ(timings.all_rounds, 5);
  });
}

TEST(BenchMeasure, SaysHowManyRoundsThereWereInAll) {
  run_ranks("shm", 1, [](std::shared_ptr<ProcessGroup> group) {
    GroupEngine engine(std::move(group));
    int runs = 0;
    const Round round{.run = [&] { ++runs; }};
    const Timings timings =
        time_rounds(engine, round, {.least_rounds = 7, .budget = 0s});
    EXPECT_EQ(timings.rounds, 7);
    EXPECT_EQ(timings.all_rounds, runs);
    EXPECT_GT(runs, 7);
  });
}

TEST(BenchMeasure, SizesAreWholeElementsAndBlocksOfTheLongerBuffer) {
  EXPECT_EQ(
      rounded_bytes({.collective = BenchCollective::kAllReduce, .bytes = 7}, 3),
      4u);
  EXPECT_EQ(
      rounded_bytes({.collective = BenchCollective::kAllGather, .bytes = 1}, 3),
      12u);
  EXPECT_EQ(
      rounded_bytes({.collective = BenchCollective::kScatter, .bytes = 100}, 3),
      96u);
  EXPECT_EQ(rounded_bytes({.collective = BenchCollective::kBarrier}, 3), 0u);
}

TEST(BenchMeasure, CountsWhatTheBuffersOfAllRanksTake) {
  const auto all = [](BenchCollective collective) {
    return bytes_of_all_buffers({.collective = collective, .bytes = 1200}, 3);
  };
  EXPECT_EQ(all(BenchCollective::kAllReduce), 3u * 1200);
  EXPECT_EQ(all(BenchCollective::kAllGather), 4u * 1200);
  EXPECT_EQ(all(BenchCollective::kGather), 2u * 1200);
  EXPECT_EQ(all(BenchCollective::kAllToAll), 6u * 1200);
}

TEST(BenchMeasure, BandwidthsAreThoseOfNcclTests) {
  const auto factor = [](BenchCollective collective, int ranks) {
    const Bandwidth found = bandwidth(collective, ranks, 1'000'000, 1ms);
    EXPECT_THAT(found.algorithm, DoubleEq(1e9));
    return found.bus / found.algorithm;
  };
  EXPECT_THAT(factor(BenchCollective::kAllReduce, 2), DoubleEq(1));
  EXPECT_THAT(factor(BenchCollective::kAllReduce, 8), DoubleEq(1.75));
  for (const BenchCollective collective :
       {BenchCollective::kAllGather, BenchCollective::kReduceScatter,
        BenchCollective::kAllToAll, BenchCollective::kGather,
        BenchCollective::kScatter})
    EXPECT_THAT(factor(collective, 4), DoubleEq(0.75));
  for (const BenchCollective collective :
       {BenchCollective::kBroadcast, BenchCollective::kReduce,
        BenchCollective::kSendRecv})
    EXPECT_THAT(factor(collective, 4), DoubleEq(1));
}

}  // namespace
}  // namespace lockstep
