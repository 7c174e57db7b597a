// Tests which ranks the errors of a wire group name when deadlines pass: ranks
// are threads, over Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"
#include "src/store/testing/watched_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

using Group = std::shared_ptr<ProcessGroup>;

const std::vector<int> kAll{0, 1, 2};

// Rank 0 waits for rank 1, which waits for rank 2 as well.
TEST(ALateRank, IsNamedAtTheEndOfAChainOfWaits) {
  run_ranks("gloo", 3, [](Group world) {
    const Group group = new_group(*world, kAll);
    std::vector<float> data(1);
    if (world->rank() != 2) {
      EXPECT_THAT(error_text<Timeout>([&] {
                    group->recv(view(data), world->rank() + 1, 0,
                                {.timeout = 500ms});
                  }),
                  AllOf(HasSubstr("missing: rank 2"),
                        Not(HasSubstr("missing: rank 1"))));
    }
    monitored_barrier(*world, kTimeout);
  });
}

// Ranks 0 and 1 wait for each other; rank 2 has called what rank 0 calls.
TEST(ALateRank, IsNotOneThatHasCome) {
  std::latch came(3);
  run_ranks("gloo", 3, [&](Group world) {
    const Group group = new_group(*world, kAll);
    std::vector<float> data(1);
    Work barrier;
    if (world->rank() == 2) barrier = group->barrier({.timeout = kTimeout});
    came.arrive_and_wait();
    std::string text;
    if (world->rank() == 1)
      text = error_text<Error>(
          [&] { group->recv(view(data), 0, 0, {.timeout = 500ms}); });
    if (world->rank() == 0)
      text =
          error_text<Error>([&] { group->barrier({.timeout = 500ms}).wait(); });
    if (world->rank() == 2) text = error_text<Error>([&] { barrier.wait(); });
    EXPECT_THAT(text, AnyOf(HasSubstr("missing: rank 0"),
                            HasSubstr("missing: rank 1")));
    EXPECT_THAT(text, Not(HasSubstr("missing: rank 2")));
    monitored_barrier(*world, kTimeout);
  });
}

// Rank 1 has time left when rank 0 gives up.
TEST(ALateRank, IsNamedByRanksWhoseDeadlinesHaveNotPassed) {
  run_ranks("gloo", 3, [](Group world) {
    const Group group = new_group(*world, kAll);
    if (world->rank() != 2) {
      const CallOptions options{.timeout =
                                    world->rank() == 0 ? 300ms : kTimeout};
      EXPECT_THAT(
          error_text<Timeout>([&] { group->barrier(options).wait(); }),
          AllOf(HasSubstr("missing: rank 2"), Not(HasSubstr("missing: rank 0")),
                Not(HasSubstr("missing: rank 1"))));
    }
    monitored_barrier(*world, kTimeout);
  });
}

// Rank 1 would send to rank 0 only after rank 0 has sent to it; rank 2 does
// something else.
TEST(ALateRank, IsAnyOtherWhereAnyCouldHaveSent) {
  run_ranks("gloo", 3, [](Group world) {
    const Group group = new_group(*world, kAll);
    std::vector<float> data(1);
    if (world->rank() != 2) {
      const int from = world->rank() == 0 ? kAnySource : 0;
      const std::string text = error_text<Timeout>(
          [&] { group->recv(view(data), from, 0, {.timeout = 500ms}); });
      if (world->rank() == 0)
        EXPECT_THAT(text, AllOf(HasSubstr("missing: rank 1"),
                                HasSubstr("missing: rank 2")));
      else
        EXPECT_THAT(text, AllOf(HasSubstr("missing: rank 0"),
                                Not(HasSubstr("missing: rank 2"))));
    }
    monitored_barrier(*world, kTimeout);
  });
}

// Tells a test of the waits for what other ranks wait for, and counts those
// that were cancelled.
class AskedStore : public WatchedStore {
 public:
  using WatchedStore::WatchedStore;

  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override {
    if (keys.front().find("/awaited/") == std::string::npos)
      return WatchedStore::wait_any(keys, deadline, cancellation);
    if (const auto action = take()) action();
    try {
      return WatchedStore::wait_any(keys, deadline, cancellation);
    } catch (const Cancelled&) {
      ++cancelled;
      throw;
    }
  }

  // The next such wait begins with `action`.
  void at_next_wait(std::function<void()> action) {
    const std::lock_guard lock(mutex_);
    action_ = std::move(action);
  }

  std::atomic<int> cancelled = 0;

 private:
  std::function<void()> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(action_, nullptr);
  }

  std::mutex mutex_;
  std::function<void()> action_;
};

// Groups of three ranks on a store of which a test watches rank 0's calls.
struct AWatchedGroup : testing::Test {
  void run(const std::function<void(Group)>& body) {
    std::vector<std::thread> threads;
    for (const int rank : kAll)
      threads.emplace_back([&, rank] {
        Settings settings;
        settings.plugin_path = LOCKSTEP_TEST_PLUGINS;
        const auto world =
            std::make_shared<World>(rank == 0 ? asked : whole, settings);
        body(make_group("gloo", {.name = "test", .rank = rank, .size = 3},
                        world));
      });
    for (std::thread& thread : threads) thread.join();
  }

  // Rank 0 does `what` while another thread of it asks who is late.
  void interrupt(const std::function<void(ProcessGroup&)>& what) {
    std::latch ended(3);
    run([&](Group group) {
      if (group->rank() == 0) {
        std::latch asks(1);
        asked->cancelled = 0;
        asked->at_next_wait([&] { asks.count_down(); });
        std::thread waiter([&] {
          std::vector<float> data(1);
          EXPECT_THROW(group->recv(view(data), 1, 0, {.timeout = 1ms}), Error);
        });
        asks.wait();
        what(*group);
        waiter.join();
        EXPECT_EQ(asked->cancelled, 1);
      }
      ended.arrive_and_wait();
    });
  }

  const std::shared_ptr<Store> whole = open_store("memory:");
  const std::shared_ptr<AskedStore> asked =
      std::make_shared<AskedStore>(whole, [](auto) {});
};

// Another thread of rank 0 carries out the barrier. Rank 2 comes while rank 0
// asks who is late.
TEST_F(AWatchedGroup, GoesOnWhenTheLateRankComesBeforeItHasGivenUp) {
  std::latch comes(1);
  run([&](Group group) {
    if (group->rank() == 2) comes.wait();
    const Work barrier = group->barrier({.timeout = kTimeout});
    if (group->rank() == 0) {
      while (barrier.missing().empty()) std::this_thread::yield();
      asked->at_next_wait([&] { comes.count_down(); });
      EXPECT_NO_THROW(barrier.wait(1ms));
    }
    EXPECT_NO_THROW(barrier.wait());
    EXPECT_NO_THROW(group->barrier({.timeout = kTimeout}).wait());
  });
}

TEST_F(AWatchedGroup, GoesOnWhenTheLateMessageComesBeforeItHasGivenUp) {
  std::latch comes(1);
  run([&](Group group) {
    std::vector<float> data(1, 7);
    if (group->rank() == 0) {
      data[0] = 0;
      asked->at_next_wait([&] { comes.count_down(); });
      const Work message = group->irecv(view(data), 1, 0);
      EXPECT_NO_THROW(message.wait(1ms));
      EXPECT_EQ(data[0], 7);
    }
    if (group->rank() == 1) {
      comes.wait();
      group->send(view(data), 0, 0, {.timeout = kTimeout});
    }
    EXPECT_NO_THROW(group->barrier({.timeout = kTimeout}).wait());
  });
}

TEST_F(AWatchedGroup, IsAbortedWithoutWaitingForTheAnswerOfLateRanks) {
  interrupt([](ProcessGroup& group) { group.abort("it was told to"); });
}

TEST_F(AWatchedGroup, IsLeftWithoutWaitingForTheAnswerOfLateRanks) {
  interrupt([](ProcessGroup& group) { group.leave(); });
}

}  // namespace
}  // namespace lockstep
