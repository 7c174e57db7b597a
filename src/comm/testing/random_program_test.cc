// Tests random programs on each backend, whose results must equal the reference
// backend's.
//
// LOCKSTEP_TEST_OPERATIONS sets the number of operations per backend, 10,000 by
// default, LOCKSTEP_TEST_SEED selects them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "src/base/testing/test_seed.h"
#include "src/comm/testing/mpirun.h"
#include "src/comm/testing/program_rank.h"
#include "src/comm/testing/rank_processes.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

// Half of the operations run with two ranks, half with five.
constexpr int kFewRanks = 2;
constexpr int kManyRanks = 5;

std::size_t steps_of_a_run() {
  const char* chosen = std::getenv("LOCKSTEP_TEST_OPERATIONS");
  return (chosen == nullptr ? 10'000 : std::strtoull(chosen, nullptr, 10)) / 2;
}

struct ProgramRun {
  int ranks;
  std::uint64_t seed;
  Elements elements;
};

using Results = std::vector<std::vector<std::uint64_t>>;  // by rank, by step

Results results_on(const std::string& backend, const ProgramRun& run) {
  Results results(static_cast<std::size_t>(run.ranks));
  run_ranks(backend, run.ranks, [&](std::shared_ptr<ProcessGroup> group) {
    auto& mine = results[static_cast<std::size_t>(group->rank())];
    mine = ProgramRank(std::move(group), run.seed, run.elements)
               .run(steps_of_a_run());
  });
  return results;
}

Step step_of(std::uint64_t seed, int ranks, std::size_t index) {
  RandomProgram program(seed, ranks);
  for (std::size_t i = 0; i < index; ++i) program.next();
  return program.next();
}

// Compares the ranks in this process; on mpi that is one rank.
void expect_equal(const Results& found, const Results& expected,
                  const ProgramRun& run) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank)
    for (std::size_t step = 0; step < found[rank].size(); ++step)
      ASSERT_EQ(found[rank][step], expected[rank][step])
          << "rank " << rank << ", "
          << describe(step_of(run.seed, run.ranks, step));
}

class RandomPrograms
    : public testing::TestWithParam<std::tuple<const char*, int>> {};

// `hybrid` adds inside hosts first: the hosts of a group's ranks decide the
// order, and so the bits of inexact sums.
TEST_P(RandomPrograms, GiveWhatTheReferenceGives) {
  const std::string backend = std::get<0>(GetParam());
  const ProgramRun run{
      .ranks = std::get<1>(GetParam()),
      .seed = test_seed(),
      .elements = backend == "hybrid" ? Elements::kExact : Elements::kMixed};
  SCOPED_TRACE("LOCKSTEP_TEST_SEED=" + std::to_string(run.seed));
  expect_equal(results_on(backend, run), results_on("reference", run), run);
}

std::vector<const char*> backends() {
  if (started_by_mpirun()) return {"mpi"};
  return {"shm", "gloo", "hybrid"};
}

INSTANTIATE_TEST_SUITE_P(
    Backends, RandomPrograms,
    testing::Combine(testing::ValuesIn(backends()),
                     testing::Values(kFewRanks, kManyRanks)),
    [](const auto& choice) {
      return std::string(std::get<0>(choice.param)) + "With" +
             std::to_string(std::get<1>(choice.param)) + "Ranks";
    });

// The processes of mpirun share one seed, which this test draws.
TEST(RandomProgramsUnderMpirun, GiveWhatTheReferenceGives) {
  const std::string why = why_no_mpirun();
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string seed = std::to_string(test_seed());
  for (const int ranks : {kFewRanks, kManyRanks}) {
    RankProcesses mpirun(
        1,
        mpirun_command(ranks,
                       {std::filesystem::read_symlink("/proc/self/exe"),
                        "--gtest_color=no",
                        "--gtest_filter=Backends/RandomPrograms.*/mpiWith" +
                            std::to_string(ranks) + "Ranks"}),
        {"LOCKSTEP_TEST_SEED=" + seed});
    EXPECT_EQ(mpirun.wait_for_end(0, std::chrono::minutes(5)), 0)
        << mpirun.output(0);
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_THAT(mpirun.output(0),
                  testing::HasSubstr("[1," + std::to_string(rank) +
                                     "]<stdout>:[  PASSED  ] 1 test"));
  }
}

TEST(RandomProgram, IsTheSameForEveryRankAndAnotherForEverySeed) {
  const auto text_of = [](std::uint64_t seed) {
    std::string text;
    RandomProgram program(seed, 4);
    for (int i = 0; i < 500; ++i) text += describe(program.next()) + "\n";
    return text;
  };
  EXPECT_EQ(text_of(1), text_of(1));
  EXPECT_NE(text_of(1), text_of(2));
}

}  // namespace
}  // namespace lockstep
