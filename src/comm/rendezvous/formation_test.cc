#include "src/comm/rendezvous/formation.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/testing/test_timeout.h"
#include "src/store/testing/watched_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A store whose waits time out, but call `late` first: another rank's action at
// the last moment.
class LateStore : public WatchedStore {
 public:
  LateStore(std::shared_ptr<Store> store, std::function<void()> late)
      : WatchedStore(std::move(store), [](auto) {}), late_(std::move(late)) {}

  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override try {
    return WatchedStore::wait_any(keys, deadline, cancellation);
  } catch (const Timeout&) {
    late_();
    throw;
  }

 private:
  const std::function<void()> late_;
};

TEST(Formation, IsCompleteForARankThatGivesUpAsTheLastOneComes) {
  const std::shared_ptr<Store> store = open_store("memory:");
  Formation last({.rank = 1, .size = 2}, store, kTimeout);
  const auto late =
      std::make_shared<LateStore>(store, [&] { last.complete(); });
  Formation first({.rank = 0, .size = 2}, late, 1ms);
  EXPECT_NO_THROW(first.complete());
  EXPECT_FALSE(store->erase("group/default/verdict", kTimeout));
}

TEST(Formation, FailsForARankThatComesAfterAnotherGaveUp) {
  const std::shared_ptr<Store> store = open_store("memory:");
  Formation first({.rank = 0, .size = 2}, store, 1ms);
  EXPECT_THROW(first.complete(), Timeout);
  Formation last({.rank = 1, .size = 2}, store, kTimeout);
  EXPECT_THROW(last.complete(), Timeout);
}

}  // namespace
}  // namespace lockstep
