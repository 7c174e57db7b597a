// Runs the conformance suite with ranks as threads. To add a backend, add its
// name to kBackends; comm_ranks_main.cc runs the same cases with ranks as
// processes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "src/comm/testing/conformance_rank.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/gpu_ranks.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

const char* const kBackends[] = {"reference", "shm", "gloo", "hybrid"};

std::uint64_t seed_of_run() {
  const char* chosen = std::getenv("LOCKSTEP_TEST_SEED");
  return chosen == nullptr ? 20261121 : std::strtoull(chosen, nullptr, 10);
}

class Conformance
    : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(Conformance, EveryRankGetsWhatTheReferenceComputes) {
  const auto [backend, ranks] = GetParam();
  const std::uint64_t seed = seed_of_run();
  auto cases = chosen_cases(ranks);
  ASSERT_FALSE(cases.empty());
  if (std::string_view(backend) == "hybrid" && ranks > 1)
    for (ConformanceCase& c : cases) c.first_host = ranks_of_first_host(ranks);
  std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
  run_ranks(backend, ranks, [&](std::shared_ptr<ProcessGroup> group) {
    auto& mine = wrong[static_cast<std::size_t>(group->rank())];
    for (std::size_t i = 0; i < cases.size(); ++i)
      mine += run_conformance_case(*group, cases[i], seed + i);
  });
  for (std::size_t r = 0; r < wrong.size(); ++r)
    EXPECT_EQ(wrong[r], "") << "rank " << r << ", LOCKSTEP_TEST_SEED=" << seed;
}

INSTANTIATE_TEST_SUITE_P(
    Backends, Conformance,
    testing::Combine(testing::ValuesIn(kBackends),
                     testing::ValuesIn(kConformanceWorldSizes)),
    [](const auto& choice) {
      return std::string(std::get<0>(choice.param)) + "With" +
             std::to_string(std::get<1>(choice.param)) + "Ranks";
    });

class ConformanceOnGpus : public testing::TestWithParam<int> {};

TEST_P(ConformanceOnGpus, EveryRankGetsWhatTheReferenceComputes) {
  const int ranks = GetParam();
  const std::uint64_t seed = seed_of_run();
  const auto cases = cases_on_gpus(ranks, Elements::kMixed);
  FakeGpu fake({.devices = ranks});
  std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
  run_gpu_ranks(fake.table(), ranks, [&](std::shared_ptr<ProcessGroup> group) {
    const Gpu gpu(fake.table(), group->rank());
    auto& mine = wrong[static_cast<std::size_t>(group->rank())];
    for (std::size_t i = 0; i < cases.size(); ++i)
      mine += run_conformance_case(*group, cases[i], seed + i, &gpu);
  });
  for (std::size_t r = 0; r < wrong.size(); ++r)
    EXPECT_EQ(wrong[r], "") << "rank " << r << ", LOCKSTEP_TEST_SEED=" << seed;
}

INSTANTIATE_TEST_SUITE_P(Nccl, ConformanceOnGpus,
                         testing::ValuesIn(kConformanceWorldSizes),
                         [](const auto& ranks) {
                           return "With" + std::to_string(ranks.param) +
                                  "Ranks";
                         });

TEST(ConformanceCases, MeetEveryValidPairOfChoices) {
  const Selection selection = pairwise_cases();
  std::size_t grid = 0;
  for (const int ranks : kConformanceWorldSizes)
    grid += all_cases(ranks).size();
  std::cout << selection.cases.size() << " of " << grid << " cases cover all "
            << selection.pairs << " valid pairs of choices\n";
  // 5 world sizes, 9 types, 30 calls (6 kinds, and 3 that reduce in 8 ways), 8
  // sizes of which each call has 7, 4 cuts, 3 memories: every pair of choices,
  // minus the reductions that a type lacks, and minus the 20 calls and the
  // largest size that have no uneven form.
  std::size_t lacking = 0;
  for (const ReduceOp op : kAllReductions)
    for (const DataType type : kAllDataTypes) lacking += !is_defined(op, type);
  EXPECT_EQ(selection.pairs, 5 * (9 + 30 + 8 + 4 + 3) + 9 * (30 + 8 + 4 + 3) -
                                 3 * lacking + 30 * (7 + 4 + 3) - 20 +
                                 8 * (4 + 3) - 1 + 4 * 3);
  EXPECT_LT(selection.cases.size(), grid / 20);
}

}  // namespace
}  // namespace lockstep
