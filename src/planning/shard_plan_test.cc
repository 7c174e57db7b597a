#include "src/planning/shard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct ShardCase {
  std::vector<ParameterSize> parameters;
  std::size_t ranks = 1;
};

ShardCase random_shard_case(std::mt19937_64& random) {
  const auto below = [&](std::size_t end) {
    return static_cast<std::size_t>(random() % end);
  };
  ShardCase made;
  made.ranks = 1 + below(9);
  const std::size_t types = 1 + below(4);
  const std::size_t devices = 1 + below(3);
  const std::size_t most_elements = std::size_t{1} << below(14);
  made.parameters.resize(below(30));
  for (ParameterSize& size : made.parameters) {
    size.elements = below(4) == 0 ? 0 : below(most_elements);
    size.type = kAllDataTypes[below(types)];
    size.device = {DeviceKind::kCpu, static_cast<int>(below(devices))};
  }
  return made;
}

// The naive version, element by element: owner[p][i] is the rank that has
// element i of parameter p. Cuts of one type and device come from a list of all
// allowed places; each is the place nearest to r/n of the elements, within the
// parameter that contains r/n.
std::vector<std::vector<std::size_t>> oracle(const ShardCase& given) {
  std::vector<std::vector<std::size_t>> owner;
  for (const ParameterSize& size : given.parameters)
    owner.emplace_back(size.elements);
  const auto same_class = [](const ParameterSize& a, const ParameterSize& b) {
    return a.type == b.type && a.device == b.device;
  };
  for (std::size_t p = 0; p < owner.size(); ++p) {
    const ParameterSize& mine = given.parameters[p];
    const std::size_t unit = 64 / size_of(mine.type);
    std::size_t before = 0, total = 0;
    for (std::size_t other = 0; other < owner.size(); ++other) {
      if (!same_class(given.parameters[other], mine)) continue;
      total += owner[other].size();
      if (other < p) before += owner[other].size();
    }
    for (std::size_t i = 0; i < owner[p].size(); ++i) {
      const std::size_t block = i / unit;  // the 64-byte unit of the element
      std::size_t rank = 0;
      for (std::size_t r = 1; r < given.ranks; ++r) {
        const std::size_t ideal = total * r / given.ranks;
        // The cut is at a multiple of the unit, so the block lies behind it
        // when its first element does.
        const bool behind =
            ideal <= before ||
            (ideal < before + owner[p].size() &&
             block * unit >= (ideal - before + unit / 2) / unit * unit);
        if (behind) rank = r;
      }
      owner[p][i] = rank;
    }
  }
  return owner;
}

// The same table, read from the plan.
std::vector<std::vector<std::size_t>> owners_in(const ShardPlan& plan,
                                                const ShardCase& given) {
  std::vector<std::vector<std::size_t>> owner;
  for (const ParameterSize& size : given.parameters)
    owner.emplace_back(size.elements, given.ranks);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (const auto& piece : plan.ranks[rank])
      for (std::size_t i = 0; i < piece.elements; ++i) {
        std::size_t& at = owner[piece.parameter].at(piece.begin + i);
        EXPECT_EQ(at, given.ranks) << "two ranks have one element";
        at = rank;
      }
  return owner;
}

void check_order(const ShardPlan& plan) {
  for (const auto& pieces : plan.ranks)
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_GT(pieces[i].elements, 0u);
      if (i > 0) {
        EXPECT_LT(pieces[i - 1].parameter, pieces[i].parameter);
      }
    }
}

void check_owners(const ShardPlan& plan, const ShardCase& given) {
  ASSERT_EQ(plan.parameters.size(), given.parameters.size());
  for (std::size_t p = 0; p < plan.parameters.size(); ++p) {
    std::size_t end = 0;
    for (const auto& owner : plan.parameters[p]) {
      const auto& piece = plan.piece(owner);
      EXPECT_EQ(piece.parameter, p);
      EXPECT_EQ(piece.begin, end);
      EXPECT_EQ(piece.begin * size_of(given.parameters[p].type) % 64, 0u);
      end += piece.elements;
    }
    EXPECT_EQ(end, given.parameters[p].elements);
  }
}

// Each rank's share of a type and device differs from 1/n by at most 64 bytes.
void check_shares(const ShardPlan& plan, const ShardCase& given) {
  for (const ParameterSize& of : given.parameters) {
    std::size_t total = 0;
    std::vector<std::size_t> share(given.ranks);
    for (std::size_t p = 0; p < given.parameters.size(); ++p) {
      if (given.parameters[p].type != of.type ||
          given.parameters[p].device != of.device)
        continue;
      total += given.parameters[p].elements;
      for (const auto& owner : plan.parameters[p])
        share[owner.rank] += plan.piece(owner).elements;
    }
    const double exact =
        static_cast<double>(total) / static_cast<double>(given.ranks);
    for (const std::size_t elements : share)
      EXPECT_LE(std::abs(static_cast<double>(elements) - exact),
                static_cast<double>(64 / size_of(of.type)) + 1);
  }
}

TEST(ShardPlan, EqualsTheObviousVersionOnRandomModels) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const ShardCase given = random_shard_case(random);
    const ShardPlan plan = plan_shards(given.parameters, given.ranks);
    ASSERT_EQ(plan.ranks.size(), given.ranks);
    ASSERT_EQ(owners_in(plan, given), oracle(given));
    check_order(plan);
    check_owners(plan, given);
    check_shares(plan, given);
    if (HasFailure()) return;
  }
}

TEST(ShardPlan, CutsOneLargeParameterForAllRanks) {
  const std::vector<ParameterSize> parameters{{4096}};
  const ShardPlan plan = plan_shards(parameters, 4);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(plan.ranks[rank].size(), 1u);
    EXPECT_EQ(plan.ranks[rank][0].begin, 1024 * rank);
    EXPECT_EQ(plan.ranks[rank][0].elements, 1024u);
  }
}

TEST(ShardPlan, LeavesRanksWithoutPiecesWhenThereIsTooLittleToCut) {
  const std::vector<ParameterSize> parameters{{3}, {0}};
  const ShardPlan plan = plan_shards(parameters, 4);
  std::size_t pieces = 0;
  for (const auto& of_rank : plan.ranks) pieces += of_rank.size();
  EXPECT_EQ(pieces, 1u);
  EXPECT_TRUE(plan.parameters[1].empty());
}

TEST(ShardPlan, OfNoParametersHasNoPieces) {
  const ShardPlan plan = plan_shards({}, 2);
  EXPECT_EQ(plan.ranks.size(), 2u);
  EXPECT_TRUE(plan.ranks[0].empty());
}

TEST(ShardPlan, RefusesAGroupOfNoRanks) {
  EXPECT_THAT(error_text([] { plan_shards({}, 0); }),
              HasSubstr("must be at least 1"));
}

}  // namespace
}  // namespace lockstep
