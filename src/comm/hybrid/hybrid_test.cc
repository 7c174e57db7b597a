// Tests hosts, chunks, and the behaviour of groups with several hosts of
// several ranks; the conformance suite tests the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "lockstep/base/error.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/hybrid/chunks.h"
#include "src/comm/hybrid/host_group.h"
#include "src/comm/hybrid/host_map.h"
#include "src/comm/rendezvous/store_all_gather.h"
#include "src/comm/testing/run_ranks.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Six ranks on three hosts, which have one, two and three ranks.
const std::vector<std::string> kUneven{"c", "a", "c", "b", "c", "a"};
const std::vector<std::string> kEven{"a", "b", "a", "b", "c", "c"};

TEST(HostMap, NumbersHostsByTheirFirstRank) {
  const HostMap map = map_hosts(kUneven);
  EXPECT_THAT(map.ranks_of, ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 5),
                                        ElementsAre(3)));
  EXPECT_THAT(map.host_of, ElementsAre(0, 1, 0, 2, 0, 1));
  EXPECT_THAT(map.index_of, ElementsAre(0, 0, 1, 0, 2, 1));
  EXPECT_EQ(map.fewest(), 1);
  EXPECT_EQ(map.most(), 3);
}

HostMap map_of_thread(int rank, const std::vector<std::string>& names,
                      Store& store) {
  const GroupIdentity identity{
      .name = "g", .rank = rank, .size = static_cast<int>(names.size())};
  return find_hosts(rank, names[static_cast<std::size_t>(rank)],
                    [&](const auto& subject, const auto& mine) {
                      return store_all_gather(identity, subject, mine, store,
                                              {kTimeout});
                    });
}

std::vector<HostMap> maps_of_threads(const std::vector<std::string>& names) {
  const auto store = open_store("memory:");
  std::vector<HostMap> maps(names.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < names.size(); ++rank)
    threads.emplace_back([&, rank] {
      maps[rank] = map_of_thread(static_cast<int>(rank), names, *store);
    });
  for (std::thread& thread : threads) thread.join();
  return maps;
}

TEST(HostMap, FindsTheRanksOfThisHostBesideThoseWithANameOfTheUsers) {
  for (const HostMap& map : maps_of_threads({"", "a", "", "b", "a", ""}))
    EXPECT_THAT(map.ranks_of, ElementsAre(ElementsAre(0, 2, 5),
                                          ElementsAre(1, 4), ElementsAre(3)));
}

// Two machines whose boot ids and namespaces have the same numbers, because one
// is a copy of the other or because the numbers are unreadable. The ranks 1 and
// 2 are here; the test is rank 0, elsewhere.
TEST(HostMap, SeparatesMachinesThatDescribeThemselvesAlike) {
  const auto store = open_store("memory:");
  std::vector<HostMap> maps(2);
  std::vector<std::thread> threads;
  for (int rank : {1, 2})
    threads.emplace_back([&, rank] {
      maps[static_cast<std::size_t>(rank) - 1] =
          map_of_thread(rank, {"", "", ""}, *store);
    });
  std::string card = to_text(store->get("group/g/host/1", kTimeout));
  card.replace(0, card.find(' '), "a-mark-of-another-machine");
  const GroupIdentity first{.name = "g", .rank = 0, .size = 3};
  store_all_gather(first, "host", card, *store, {kTimeout});
  store_all_gather(first, "host/first", "0", *store, {kTimeout});
  for (std::thread& thread : threads) thread.join();
  for (const HostMap& map : maps)
    EXPECT_THAT(map.ranks_of, ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
}

// Lists of buffers of `counts` elements, numbered throughout.
struct Numbered {
  explicit Numbered(const std::vector<int>& counts) {
    float next = 0;
    for (const int count : counts) {
      auto& values = memory.emplace_back(static_cast<std::size_t>(count));
      std::iota(values.begin(), values.end(), next);
      next += static_cast<float>(count);
      buffers.push_back(view(values));
    }
  }
  std::vector<std::vector<float>> memory;
  std::vector<Buffer> buffers;
};

void expect_every_element_once(const Chunks& chunks, const Chunks::Shape& shape,
                               float elements) {
  float next = 0;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    chunks.fetch(c);
    for (std::size_t b = 0; b < shape.blocks; ++b)
      for (std::size_t p = 0; p < shape.pieces; ++p) {
        const Buffer piece = chunks.piece(c, b, p);
        const auto* values = static_cast<const float*>(piece.data);
        for (std::int64_t i = 0; i < piece.count; ++i)
          ASSERT_EQ(values[i], next++);
      }
  }
  EXPECT_EQ(next, elements);
}

TEST(Chunks, HaveEveryElementOnceAndInOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 30; ++round) {
    std::vector<int> counts{1};
    for (unsigned i = random() % 4; i > 0; --i)
      counts.push_back(static_cast<int>(random() % 400'000));
    const Numbered numbered(counts);
    const Chunks::Shape shape{1 + random() % 4, 1 + random() % 4};
    std::vector<std::byte> places;
    const Chunks chunks(numbered.buffers, shape, [&](std::size_t bytes) {
      places.resize(bytes);
      return places.data();
    });
    expect_every_element_once(
        chunks, shape,
        static_cast<float>(std::accumulate(counts.begin(), counts.end(), 0)));
  }
}

TEST(Chunks, GoBackToTheBuffersTheyCameFrom) {
  Numbered numbered({100'000, 3, 70'000, 200'001});
  const auto before = numbered.memory;
  std::vector<std::byte> places;
  const Chunks chunks(numbered.buffers, {2, 2}, [&](std::size_t bytes) {
    places.resize(bytes);
    return places.data();
  });
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    chunks.fetch(c);
    const Buffer whole = chunks.whole(c);
    auto* values = static_cast<float*>(whole.data);
    for (std::int64_t i = 0; i < whole.count; ++i) values[i] += 1;
    chunks.put_back(c);
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    for (std::size_t j = 0; j < before[i].size(); ++j)
      ASSERT_EQ(numbered.memory[i][j], before[i][j] + 1);
}

class Hybrid : public testing::TestWithParam<std::vector<std::string>> {};

INSTANTIATE_TEST_SUITE_P(Hosts, Hybrid, testing::Values(kUneven, kEven),
                         [](const auto& hosts) {
                           return hosts.param == kEven ? "OfTwoRanksEach"
                                                       : "OfOneToThreeRanks";
                         });

float value_of(int rank, std::size_t i) {
  return static_cast<float>(rank + 1) * static_cast<float>(i % 1000);
}

// Several chunks, in one buffer and in several.
const std::vector<std::vector<std::size_t>> kCuts{
    {2'500'000}, {700'001, 5, 300'000, 1'500'000}, {10'000}};

TEST_P(Hybrid, ReducesTheSameOnEveryRankWhateverTheCut) {
  run_ranks_on(GetParam(), "hybrid", [](std::shared_ptr<ProcessGroup> group) {
    EXPECT_EQ(group->backend(), "hybrid");
    for (const auto& cut : kCuts) {
      std::vector<std::vector<float>> memory;
      std::vector<Buffer> buffers;
      for (const std::size_t count : cut) {
        auto& values = memory.emplace_back(count);
        for (std::size_t i = 0; i < count; ++i)
          values[i] = value_of(group->rank(), i);
        buffers.push_back(view(values));
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage})
        group->all_reduce(buffers, op).wait();
      // The mean of six equal sums is the sum.
      for (const auto& values : memory)
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(values[i], 21 * static_cast<float>(i % 1000)) << i;
    }
  });
}

TEST_P(Hybrid, BroadcastsFromAnyRank) {
  run_ranks_on(GetParam(), "hybrid", [](std::shared_ptr<ProcessGroup> group) {
    for (int root = 0; root < group->size(); ++root) {
      std::vector<float> head(3), tail(900'001);
      if (group->rank() == root) {
        std::iota(tail.begin(), tail.end(), static_cast<float>(root));
        head = {1, 2, 3};
      }
      group->broadcast({view(head), view(tail)}, root).wait();
      ASSERT_THAT(head, ElementsAre(1, 2, 3));
      for (std::size_t i = 0; i < tail.size(); ++i)
        ASSERT_EQ(tail[i], static_cast<float>(i) + static_cast<float>(root));
    }
  });
}

// Around the size that travels with the ranks' calls, and the size of a small
// operation.
const std::vector<std::size_t> kSmallCounts{0, 1, 43, 44, 45, 1000, 4096, 4097};

TEST_P(Hybrid, CarriesOutSmallOperationsOfEveryKind) {
  run_ranks_on(GetParam(), "hybrid", [](std::shared_ptr<ProcessGroup> group) {
    const auto ranks = static_cast<std::size_t>(group->size());
    const auto rank = static_cast<float>(group->rank());
    for (const std::size_t count : kSmallCounts) {
      group->barrier().wait();
      std::vector<float> sum(count, rank + 1), mean(count, rank + 1);
      std::vector<float> largest(count, rank);
      group->all_reduce(view(sum), ReduceOp::kSum).wait();
      group->all_reduce(view(mean), ReduceOp::kAverage).wait();
      group->all_reduce(view(largest), ReduceOp::kMax).wait();
      EXPECT_THAT(sum, testing::Each(21));
      EXPECT_THAT(mean, testing::Each(3.5F));
      EXPECT_THAT(largest, testing::Each(5));

      const std::vector<float> own(count, rank);
      std::vector<float> all(count * ranks, -1);
      group->all_gather(view(own), view(all)).wait();
      std::vector<float> turned(count * ranks, -1);
      group->all_to_all(view(all), view(turned)).wait();
      std::vector<float> back(count, -1);
      group->reduce_scatter(view(all), view(back), ReduceOp::kSum).wait();
      for (std::size_t from = 0; from < ranks; ++from)
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(all[from * count + i], static_cast<float>(from));
          ASSERT_EQ(turned[from * count + i], rank);
        }
      EXPECT_THAT(back, testing::Each(6 * rank));
      for (int root = 0; root < group->size(); ++root) {
        std::vector<float> values(count, rank);
        group->broadcast(view(values), root).wait();
        EXPECT_THAT(values, testing::Each(static_cast<float>(root)));
      }
    }
  });
}

TEST_P(Hybrid, TellsEveryRankWhichRankCalledSomethingElse) {
  for (int other = 0; other < 6; ++other) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
      run_ranks_on(
          GetParam(), "hybrid", [&](std::shared_ptr<ProcessGroup> group) {
            std::vector<float> values(count);
            group->all_reduce(view(values), ReduceOp::kSum).wait();
            const ReduceOp op =
                group->rank() == other ? ReduceOp::kMax : ReduceOp::kSum;
            try {
              group->all_reduce(view(values), op).wait();
              ADD_FAILURE() << "rank " << group->rank() << " heard nothing";
            } catch (const Mismatch& mismatch) {
              EXPECT_THAT(mismatch.what(),
                          testing::ContainsRegex(
                              "called:  all_reduce #2 .max, [^\n]*. by rank " +
                              std::to_string(other) + "\n"));
              EXPECT_THAT(mismatch.what(), HasSubstr("by ranks "));
            }
          });
    }
  }
}

TEST_P(Hybrid, NamesARankOfAnyHostByItsRankInTheGroup) {
  for (int culprit = 0; culprit < 6; ++culprit) {
    run_ranks_on(
        GetParam(), "hybrid", [&](std::shared_ptr<ProcessGroup> group) {
          std::vector<float> values(1'000'000);
          group->all_reduce(view(values), ReduceOp::kSum).wait();
          if (group->rank() == culprit) return group->abort("it gave up");
          try {
            group->all_reduce(view(values), ReduceOp::kSum).wait();
            ADD_FAILURE() << "rank " << group->rank() << " heard nothing";
          } catch (const PeerFailure& failure) {
            EXPECT_EQ(failure.rank(), culprit) << failure.what();
            EXPECT_THAT(failure.what(), HasSubstr("it gave up"));
          }
        });
  }
}

// Both for a wait for a rank of its own host and of another.
TEST_P(Hybrid, IsLeftAtOnceWithAnOperationInFlight) {
  run_ranks_on(GetParam(), "hybrid", [](std::shared_ptr<ProcessGroup> group) {
    std::vector<float> values(1'000'000);
    group->all_reduce(view(values), ReduceOp::kSum).wait();
    if (group->rank() != 2)
      static_cast<void>(group->all_reduce(view(values), ReduceOp::kSum));
    group->leave();  // returns, and nothing touches the values any more
  });
}

// A second thread that waits for the same operation may ask after the first has
// given up.
TEST(HostGroup, NamesWhoIsMissingEvenOnceItHasGivenUp) {
  const auto store = open_store("memory:");
  const auto join = [&](int rank) {
    return std::make_unique<HostGroup>(GroupIdentity{.rank = rank, .size = 6},
                                       0, std::vector<int>{2, 5}, *store,
                                       Settings());
  };
  std::unique_ptr<HostGroup> here, there;
  std::thread other([&] { there = join(5); });
  here = join(2);
  other.join();
  const Work work = here->start({.kind = OperationKind::kBarrier,
                                 .timeout = std::chrono::milliseconds(1)});
  EXPECT_THAT(here->missing(work), ElementsAre(5));
  EXPECT_THROW(here->wait(work), WaitExpired);
  EXPECT_THAT(here->missing(work), ElementsAre(5));
  // The barrier in which both have arrived is complete; the next is not.
  const Operation barrier{.kind = OperationKind::kBarrier,
                          .timeout = std::chrono::minutes(1)};
  there->wait(there->start(barrier));
  const Work alone = there->start(barrier);
  EXPECT_THROW(there->wait(alone), TransportError);
  EXPECT_THAT(there->missing(alone), ElementsAre(2));
}

// Ranks 1 and 3 are not the first ones of their hosts: no connection exists
// before the first message.
TEST(HybridMessages, ArriveFromARankThatLeavesAtOnce) {
  run_ranks_on({"a", "a", "b", "b"}, "hybrid",
               [](std::shared_ptr<ProcessGroup> group) {
                 std::vector<int> value{7 * group->rank()};
                 if (group->rank() == 3) {
                   group->isend(view(value), 1).wait();
                   group->leave();
                 }
                 if (group->rank() == 1) {
                   group->irecv(view(value), kAnySource).wait();
                   EXPECT_EQ(value[0], 21);
                 }
               });
}

TEST(HybridMessages, FromAnyRankEndWhenEveryOtherRankHasLeft) {
  run_ranks_on(
      {"a", "a", "b", "b"}, "hybrid", [](std::shared_ptr<ProcessGroup> group) {
        if (group->rank() != 1) return group->leave();
        std::vector<int> value{0};
        EXPECT_THROW(group->irecv(view(value), kAnySource).wait(), PeerFailure);
      });
}

TEST(HybridGroups, OfOneHostAreSharedMemoryAndOfLonelyRanksTheWire) {
  const auto backend_on = [](const std::vector<std::string>& hosts) {
    std::string name;
    run_ranks_on(hosts, "auto", [&](std::shared_ptr<ProcessGroup> group) {
      if (group->rank() == 0) name = group->backend();
    });
    return name;
  };
  EXPECT_EQ(backend_on({"a", "a", "a"}), "shm");
  EXPECT_EQ(backend_on({"a", "b"}), "gloo");
  EXPECT_EQ(backend_on({"a", "b", "a"}), "hybrid");
}

}  // namespace
}  // namespace lockstep
