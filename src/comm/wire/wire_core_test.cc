// Tests how often a rank of a large group calls the store during a wait.
#include "src/comm/wire/wire_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>

#include "src/base/testing/error_text.h"
#include "src/comm/testing/scripted_transport.h"
#include "src/store/testing/watched_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr int kRanks = 64;

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
  std::vector<int> ranks(kRanks - 1);
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

// Rank 0 of many, whose transport does not detect that a process has ended.
struct ARankOfMany : testing::Test {
  ARankOfMany() {
    std::vector<std::string> death_keys;
    for (int rank = 0; rank < kRanks; ++rank)
      death_keys.push_back("ended/" + std::to_string(rank));
    core = transport.make_core(kRanks, store, death_keys);
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
  EXPECT_LT(store->calls(), kRanks / 2);
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

// The rank waits for all silent ranks together, and follows the chain from a
// rank that publishes awaited ranks.
TEST_F(ARankOfMany, WaitsForWhatAllOthersSayAtOnce) {
  GroupFault other(store, "fault");
  other.say_awaited(5, {6});
  const int before = store->calls();
  Operation operation{.kind = OperationKind::kBarrier, .sequence = 1};
  const auto error = core->give_up(
      std::make_exception_ptr(WaitExpired(
          {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22})),
      operation, Deadline::Clock::now());
  const std::string text = error_text([&] { std::rethrow_exception(error); });
  EXPECT_THAT(text, HasSubstr("missing: rank 6,"));
  EXPECT_THAT(text, testing::Not(HasSubstr("missing: rank 5,")));
  EXPECT_LT(store->calls() - before, 12);
}

}  // namespace
}  // namespace lockstep
