// Random programs on each backend, whose results must be those of the reference
// backend.
//
// LOCKSTEP_TEST_OPERATIONS sets how many operations each run has, 2,500 unless
// set, LOCKSTEP_TEST_SEED what they are.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/comm/testing/program_rank.h"
#include "lockstep/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* chosen = std::getenv(variable);
  return chosen == nullptr ? otherwise : std::strtoull(chosen, nullptr, 10);
}

using Results = std::vector<std::vector<std::uint64_t>>;  // by rank, by step

Results results_on(const char* backend, int ranks, std::uint64_t seed,
                   std::size_t steps) {
  Results results(static_cast<std::size_t>(ranks));
  run_ranks(backend, ranks, [&](std::shared_ptr<ProcessGroup> group) {
    auto& mine = results[static_cast<std::size_t>(group->rank())];
    mine = ProgramRank(std::move(group), seed).run(steps);
  });
  return results;
}

Step step_of(std::uint64_t seed, int ranks, std::size_t index) {
  RandomProgram program(seed, ranks);
  for (std::size_t i = 0; i < index; ++i) program.next();
  return program.next();
}

class RandomPrograms
    : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(RandomPrograms, GiveWhatTheReferenceGives) {
  const auto [backend, ranks] = GetParam();
  const std::uint64_t seed = number_from("LOCKSTEP_TEST_SEED", 20261121);
  const auto steps =
      static_cast<std::size_t>(number_from("LOCKSTEP_TEST_OPERATIONS", 2500));
  SCOPED_TRACE("LOCKSTEP_TEST_SEED=" + std::to_string(seed));
  std::cout << "LOCKSTEP_TEST_SEED=" << seed << ", " << steps << " steps\n";
  const Results expected = results_on("reference", ranks, seed, steps);
  const Results found = results_on(backend, ranks, seed, steps);
  for (std::size_t step = 0; step < steps; ++step)
    for (std::size_t rank = 0; rank < expected.size(); ++rank)
      ASSERT_EQ(found[rank][step], expected[rank][step])
          << "rank " << rank << ", " << describe(step_of(seed, ranks, step));
}

INSTANTIATE_TEST_SUITE_P(Backends, RandomPrograms,
                         testing::Combine(testing::Values("shm", "gloo"),
                                          testing::Values(2, 5)),
                         [](const auto& choice) {
                           return std::string(std::get<0>(choice.param)) +
                                  "With" +
                                  std::to_string(std::get<1>(choice.param)) +
                                  "Ranks";
                         });

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
