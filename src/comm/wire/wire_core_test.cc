// Tests how a rank of a large group waits, how often it calls the store
// meanwhile, and what it does when it gives up.
#include "src/comm/wire/wire_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <set>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/operation/peer_checks.h"
#include "src/comm/testing/scripted_transport.h"
#include "src/store/store_call.h"
#include "src/store/testing/watched_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int kManyRanks = 64;
// Long enough for a rank to publish what it waits for, in a test that works.
constexpr auto kAWhile = 500ms;

// Counts its calls.
class CountingStore : public WatchedStore {
 public:
  CountingStore()
      : WatchedStore(open_store("memory:"), [this](auto) { ++calls_; }) {}
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_{0};
};

std::vector<int> other_ranks() {
  std::vector<int> ranks(kManyRanks - 1);
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

// Rank 0 of many, whose transport does not detect that a process has ended.
struct ARankOfMany : testing::Test {
  ARankOfMany() {
    std::vector<std::string> death_keys;
    for (int rank = 0; rank < kManyRanks; ++rank)
      death_keys.push_back("ended/" + std::to_string(rank));
    core = transport.make_core(kManyRanks, store, death_keys);
    for (const int rank : other_ranks()) core->expect(rank);
  }

  ScriptedTransport transport;
  const std::shared_ptr<CountingStore> store =
      std::make_shared<CountingStore>();
  std::unique_ptr<WireCore> core;
};

// Issue 19, point 21.
TEST_F(ARankOfMany, AsksTheStoreOnceAtATimeWhetherAnyOfThemEnded) {
  std::byte never{};
  WireCore::Request request =
      core->transport().receive({1, kChannelCollective, 0, &never, 1});
  EXPECT_THROW(core->wait(request, 500ms), WaitExpired);
  EXPECT_GT(store->calls(), 0);
  EXPECT_LT(store->calls(), kManyRanks / 2);
}

TEST_F(ARankOfMany, FindsTheOneThatEnded) {
  store->set("ended/40", to_bytes("ended"), 1min);
  std::byte never{};
  WireCore::Request request =
      core->transport().receive({1, kChannelCollective, 0, &never, 1});
  try {
    core->wait(request, 1min);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TransportError& error) {
    EXPECT_EQ(error.peer(), 40);
  }
}

std::vector<int> ranks_from(int first, int last) {
  std::vector<int> ranks(static_cast<std::size_t>(last - first + 1));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

// The error of a rank that waits in a barrier for `missing`.
std::string text_when_late(WireCore& core, std::vector<int> missing) {
  const Operation barrier{.kind = OperationKind::kBarrier, .sequence = 1};
  const auto error =
      core.give_up({std::make_exception_ptr(WaitExpired(std::move(missing))),
                    barrier, Deadline::Clock::now()});
  return error_text<Timeout>([&] { std::rethrow_exception(error); });
}

// The rank waits for all silent ranks together.
TEST_F(ARankOfMany, FollowsTheChainFromARankThatWaits) {
  WaitChain other(
      {std::make_shared<GroupFault>(store, "fault"), 5, kManyRanks});
  EXPECT_TRUE(other.publish({.ranks = {40}}, Deadline::never()));
  const int before = store->calls();
  const std::string text = text_when_late(*core, ranks_from(5, 22));
  EXPECT_THAT(text, HasSubstr("missing: rank 40,"));
  EXPECT_THAT(text, HasSubstr("missing: rank 6,"));
  EXPECT_THAT(text, Not(HasSubstr("missing: rank 5,")));
  EXPECT_LT(store->calls() - before, 12);
}

// A rank that ends because another one gave up waits as well.
TEST_F(ARankOfMany, SaysForWhomItWaitedWhenAnotherGivesUp) {
  const auto group = std::make_shared<GroupFault>(store, "fault");
  const Fault theirs{FaultKind::kGaveUp, 3, 1, "it gave up waiting"};
  group->settle(theirs);
  for (const int rank : other_ranks())
    if (rank != 7) core->arrived(rank);
  const Operation barrier{.kind = OperationKind::kBarrier, .sequence = 1};
  const auto error = core->give_up({std::make_exception_ptr(FaultSeen(theirs)),
                                    barrier, Deadline::Clock::now()});
  EXPECT_THAT(error_text<Timeout>([&] { std::rethrow_exception(error); }),
              HasSubstr("missing: rank 7,"));
  WaitChain other({group, 2, kManyRanks});
  EXPECT_EQ(other.ends({.ranks = {0}}, kAWhile), std::vector{7});
}

TEST_F(ARankOfMany, GoesOnWhenTheOperationCompletesBeforeItGivesUp) {
  const Operation barrier{.kind = OperationKind::kBarrier, .sequence = 1};
  EXPECT_EQ(core->give_up({std::make_exception_ptr(WaitExpired({5})), barrier,
                           Deadline::Clock::now(), [] { return true; }}),
            nullptr);
  const auto group = std::make_shared<GroupFault>(store, "fault");
  EXPECT_EQ(group->look(), std::nullopt);
  EXPECT_TRUE(
      core->transport().receive({1, kChannelCollective, 0, nullptr, 0}));
  WaitChain other({group, 2, kManyRanks});
  EXPECT_EQ(other.ends({.ranks = {0}}, kAWhile), std::vector{0});
}

// The ranks that read the fault learn which rank has noticed the end. It cannot
// tell a dead process from a dead link.
TEST(ARankThatGivesUp, SaysThatItLostItsConnectionToTheOther) {
  ScriptedTransport transport;
  const std::shared_ptr<Store> store = open_store("memory:");
  const auto core = transport.make_core(4, store);
  const Operation barrier{.kind = OperationKind::kBarrier, .sequence = 1};
  const auto error = core->give_up(
      {std::make_exception_ptr(TransportError(kTransportBroken, 2, "reset")),
       barrier, Deadline::Clock::now()});
  const std::string witness =
      "rank 0 lost its connection to rank 2: that process ended or left the "
      "group, or the link between the hosts is down (reset)";
  EXPECT_THAT(error_text<PeerFailure>([&] { std::rethrow_exception(error); }),
              HasSubstr("rank 2 is gone: " + witness));
  const auto fault = GroupFault(store, "fault").look();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->reason, witness);
}

// A store whose calls fail.
template <class Failure>
class FailingStore : public WatchedStore {
 public:
  FailingStore()
      : WatchedStore(open_store("memory:"),
                     [](auto) { throw Failure("no answer"); }) {}
};

// Rank 2 may have served the store. Rank 1, if it is slow and misses the
// notice, would blame rank 0 for the end of their connection.
TEST(ARankThatGivesUp, StaysConnectedWhereOnlyItsNoticeTellsTheOthers) {
  ScriptedTransport transport;
  const auto core =
      transport.make_core(3, std::make_shared<FailingStore<StoreEnded>>());
  const Operation barrier{.kind = OperationKind::kBarrier, .sequence = 1};
  const auto begun = Deadline::Clock::now();
  core->give_up(
      {std::make_exception_ptr(TransportError(kTransportBroken, 2, "reset")),
       barrier, begun});
  EXPECT_GT(Deadline::Clock::now() - begun, 2 * kStoreCheckInterval);
}

// Rank 0 has been connected to ranks 1 to 3 since the group formed.
TEST(ARankThatGivesUp, BelievesTheRanksOfItsHostWhereNoStoreAnswers) {
  ScriptedTransport transport;
  const auto core =
      transport.make_core(4, std::make_shared<FailingStore<StoreEnded>>());
  std::set<int> told;
  core->know_host(
      {.check =
           [] {
             throw TransportError(kTransportBroken, 3,
                                  "its process was killed");
           },
       .tell = [&](const Fault& fault) { told.insert(fault.culprit); }});
  const Operation barrier{.kind = OperationKind::kBarrier, .sequence = 1};
  const auto error = core->give_up(
      {std::make_exception_ptr(TransportError(kTransportBroken, 2, "reset")),
       barrier, Deadline::Clock::now()});
  EXPECT_THAT(error_text<PeerFailure>([&] { std::rethrow_exception(error); }),
              HasSubstr("rank 3 is gone"));
  EXPECT_THAT(told, ElementsAre(3));
}

// What rank 0 of 4 throws when it waits for rank 1, over a transport that does
// not detect deaths, until `deadline`.
template <class Failure>
std::string text_of_wait(const std::shared_ptr<Store>& store,
                         Deadline deadline) {
  ScriptedTransport transport;
  transport.store_patience = 300ms;
  const auto core = transport.make_core(
      4, store, {"ended/0", "ended/1", "ended/2", "ended/3"});
  std::byte never{};
  WireCore::Request request =
      core->transport().receive({1, kChannelCollective, 0, &never, 1});
  core->expect(1);
  return error_text<Failure>([&] { core->wait(request, deadline); });
}

TEST(ARankThatWaits, GivesUpWhereTheStoreThatReportsDeathsIsSilent) {
  for (const std::shared_ptr<Store>& store :
       {std::shared_ptr<Store>(std::make_shared<FailingStore<Timeout>>()),
        std::shared_ptr<Store>(
            std::make_shared<FailingStore<NetworkError>>())}) {
    const std::string text = text_of_wait<NetworkError>(store, kTimeout);
    EXPECT_THAT(text, HasSubstr("while it waited for rank 1, the store"));
    EXPECT_THAT(text, HasSubstr("next:    check the network between these"));
  }
}

// Rank 0 may have ended in good order, and its store with it.
TEST(ARankThatWaits, GoesOnWhereTheStoreHasEnded) {
  EXPECT_EQ(text_of_wait<WaitExpired>(
                std::make_shared<FailingStore<StoreEnded>>(), 1s),
            "a deadline passed");
}

// A store whose server is stopped: calls end with their deadlines. The test
// does not wait for that.
class StoppedStore : public WatchedStore {
 public:
  StoppedStore() : WatchedStore(open_store("memory:"), [](auto) {}) {}

  void set(std::string_view, std::span<const std::byte>,
           Deadline deadline) override {
    stay("set", deadline);
  }
  std::size_t wait_any(std::span<const std::string>, Deadline deadline,
                       const Cancellation*) override {
    stay("wait_any", deadline);
  }
  Bytes compare_and_set(std::string_view,
                        std::optional<std::span<const std::byte>>,
                        std::span<const std::byte>,
                        Deadline deadline) override {
    stay("compare_and_set", deadline);
  }

  std::vector<std::string> calls;
  Deadline::Clock::time_point first{};
  Deadline last = Deadline::never();

 private:
  [[noreturn]] void stay(const std::string& call, Deadline deadline) {
    if (calls.empty()) first = Deadline::Clock::now();
    calls.push_back(call);
    last = deadline;
    throw Timeout("the store does not answer");
  }
};

TEST(ARankThatGivesUp, AsksAStoppedStoreForTwoSecondsInAll) {
  ScriptedTransport transport;
  const auto store = std::make_shared<StoppedStore>();
  const auto core = transport.make_core(4, store);
  EXPECT_THAT(text_when_late(*core, {2}), HasSubstr("missing: rank 2,"));
  EXPECT_THAT(store->calls, ElementsAre("set", "compare_and_set"));
  EXPECT_LE(store->last.when(), store->first + 2s);
}

TEST(ARankThatGivesUp, DoesNotOutlastItsDeadlineToLookAtAStoppedStore) {
  ScriptedTransport transport;
  const auto store = std::make_shared<StoppedStore>();
  const auto core = transport.make_core(4, store);
  std::byte never{};
  WireCore::Request request =
      core->transport().receive({1, kChannelCollective, 0, &never, 1});
  const Deadline deadline(kStoreCheckInterval * 3 / 2);
  EXPECT_THROW(core->wait(request, deadline), WaitExpired);
  EXPECT_THAT(store->calls, ElementsAre("compare_and_set"));
  EXPECT_LE(store->last, deadline);
}

TEST(ARankThatGivesUp, HasNothingToFollowInAGroupOfTwo) {
  ScriptedTransport transport;
  const auto store = std::make_shared<StoppedStore>();
  const auto core = transport.make_core(2, store);
  EXPECT_THAT(text_when_late(*core, {1}), HasSubstr("missing: rank 1,"));
  EXPECT_THAT(store->calls, ElementsAre("compare_and_set"));
}

}  // namespace
}  // namespace lockstep
