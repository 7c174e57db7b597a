// Tests which ranks are the ends of chains of waits.
#include "src/comm/wire/wait_chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "src/base/testing/test_timeout.h"
#include "src/store/testing/watched_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

constexpr int kRanks = 8;
// Enough to read what has been published, and not yet to wait for more.
constexpr auto kBriefly = 100ms;
const Deadline kNever = Deadline::never();

// Notes the deadlines of waits, and fails to read the keys in `unreadable`.
class ChainStore : public WatchedStore {
 public:
  ChainStore() : WatchedStore(open_store("memory:"), [](auto) {}) {}

  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    latest = std::max(latest, deadline.when());
    if (unreadable.contains(std::string(key))) throw Timeout("unreadable");
    return WatchedStore::get(key, deadline, cancellation);
  }
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override {
    latest = std::max(latest, deadline.when());
    if (at_wait) at_wait();
    try {
      return WatchedStore::wait_any(keys, deadline, cancellation);
    } catch (const Cancelled&) {
      ++cancelled;
      throw;
    }
  }

  std::set<std::string> unreadable;
  Deadline::Clock::time_point latest{};
  int cancelled = 0;
  std::function<void()> at_wait;
};

struct AChainOfWaits : testing::Test {
  WaitChain of(int rank, int duplicate = 0) {
    return WaitChain({fault, rank, kRanks, duplicate});
  }
  void publish(int rank, std::vector<int> ranks) {
    EXPECT_TRUE(of(rank).publish({.ranks = std::move(ranks)}, kNever));
  }
  std::vector<int> ends(int rank, std::vector<int> ranks) {
    return of(rank).ends({.ranks = std::move(ranks)}, kBriefly);
  }

  const std::shared_ptr<ChainStore> store = std::make_shared<ChainStore>();
  const std::shared_ptr<GroupFault> fault =
      std::make_shared<GroupFault>(store, "fault");
};

TEST_F(AChainOfWaits, EndsWhereARankDoesNotWait) {
  publish(1, {2});
  publish(2, {3, 4});
  publish(4, {3});
  EXPECT_THAT(ends(0, {1, 2}), ElementsAre(3));
}

TEST_F(AChainOfWaits, EndsInACircleOfWhichThisRankIsOne) {
  publish(1, {2});
  publish(2, {0});
  EXPECT_THAT(ends(0, {1}), ElementsAre(1, 2));
  EXPECT_THAT(ends(0, {1, 3}), ElementsAre(1, 3, 2));
}

TEST_F(AChainOfWaits, EndsInACircleOfOthersAndWhereARankDoesNotWait) {
  publish(1, {2});
  publish(2, {1});
  publish(3, {1});
  EXPECT_THAT(ends(0, {1}), ElementsAre(1, 2));
  EXPECT_THAT(ends(0, {3}), ElementsAre(1, 2));
  EXPECT_THAT(ends(0, {3, 4}), ElementsAre(4, 1, 2));
}

TEST_F(AChainOfWaits, EndsWhereARankWaitsForAnySource) {
  EXPECT_TRUE(
      of(0).publish({.ranks = {1, 2, 3}, .any_suffices = true}, kNever));
  EXPECT_THAT(ends(1, {0}), ElementsAre(0));
  publish(1, {0});
  EXPECT_THAT(ends(2, {1, 4}), ElementsAre(4, 0));
}

TEST_F(AChainOfWaits, IsNotFollowedFromAReceiveFromAnySource) {
  publish(1, {2});
  EXPECT_THAT(of(0).ends({.ranks = {1, 2}, .any_suffices = true}, kBriefly),
              ElementsAre(1, 2));
}

TEST_F(AChainOfWaits, DoesNotEndAtARankWhoseWaitCannotBeRead) {
  publish(1, {3});
  store->unreadable = {"fault/awaited/0/1"};
  EXPECT_THAT(ends(0, {1, 2}), ElementsAre(2));
  EXPECT_THAT(ends(0, {1}), ElementsAre(1));
}

TEST_F(AChainOfWaits, DoesNotEndAtARankThatDoesNotKnowForWhomItWaits) {
  publish(1, {});
  EXPECT_THAT(ends(0, {1, 2}), ElementsAre(2));
}

TEST_F(AChainOfWaits, IsFollowedUntilTheDeadlineOnly) {
  for (int rank = 1; rank + 1 < kRanks; ++rank) publish(rank, {rank + 1});
  const Deadline deadline(kBriefly);
  EXPECT_THAT(of(0).ends({.ranks = {1}}, deadline), ElementsAre(kRanks - 1));
  EXPECT_LE(store->latest, deadline.when());
}

TEST_F(AChainOfWaits, IsAnotherOneInADuplicate) {
  EXPECT_TRUE(of(1, 2).publish({.ranks = {3}}, kNever));
  EXPECT_THAT(ends(0, {1}), ElementsAre(1));
  EXPECT_THAT(of(0, 2).ends({.ranks = {1}}, kBriefly), ElementsAre(3));
}

TEST_F(AChainOfWaits, ForgetsARankThatWaitsNoMore) {
  publish(1, {2});
  of(1).retract(kNever);
  EXPECT_THAT(ends(0, {1}), ElementsAre(1));
}

TEST_F(AChainOfWaits, IsLeftWhenTheRankMustHurry) {
  WaitChain chain = of(0);
  std::thread other;
  store->at_wait = [&] { other = std::thread([&] { chain.stop(); }); };
  EXPECT_THAT(chain.ends({.ranks = {1}}, kTimeout), ElementsAre(1));
  other.join();
  EXPECT_EQ(store->cancelled, 1);
  store->at_wait = [] { ADD_FAILURE() << "it follows"; };
  EXPECT_THAT(chain.ends({.ranks = {1}}, kBriefly), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep
