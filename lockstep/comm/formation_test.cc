#include "lockstep/comm/formation.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Long enough to never pass in a test that works.
constexpr auto kPatience = 60s;

// A store whose waits are over when their deadline is, and which calls `late`
// before it says so: what another rank did at the last moment.
class LateStore : public Store {
 public:
  LateStore(std::shared_ptr<Store> store, std::function<void()> late)
      : store_(std::move(store)), late_(std::move(late)) {}

  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override {
    store_->set(key, value, deadline);
  }
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    return store_->get(key, deadline, cancellation);
  }
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override try {
    return store_->wait_any(keys, deadline, cancellation);
  } catch (const Timeout&) {
    late_();
    throw;
  }
  std::int64_t add(std::string_view key, std::int64_t amount,
                   Deadline deadline) override {
    return store_->add(key, amount, deadline);
  }
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) override {
    return store_->compare_and_set(key, expected, desired, deadline);
  }
  bool erase(std::string_view key, Deadline deadline) override {
    return store_->erase(key, deadline);
  }
  void set_last_will(std::string_view key, std::span<const std::byte> value,
                     Deadline deadline) override {
    store_->set_last_will(key, value, deadline);
  }
  void withdraw_last_will(Deadline deadline) override {
    store_->withdraw_last_will(deadline);
  }

 private:
  const std::shared_ptr<Store> store_;
  const std::function<void()> late_;
};

TEST(Formation, IsCompleteForARankThatGivesUpAsTheLastOneComes) {
  const std::shared_ptr<Store> store = open_store("memory:");
  Formation last({.rank = 1, .size = 2}, store, kPatience);
  const auto late =
      std::make_shared<LateStore>(store, [&] { last.complete(); });
  Formation first({.rank = 0, .size = 2}, late, 1ms);
  EXPECT_NO_THROW(first.complete());
  EXPECT_FALSE(store->erase("group/default/verdict", kPatience));
}

TEST(Formation, FailsForARankThatComesAfterAnotherGaveUp) {
  const std::shared_ptr<Store> store = open_store("memory:");
  Formation first({.rank = 0, .size = 2}, store, 1ms);
  EXPECT_THROW(first.complete(), Timeout);
  Formation last({.rank = 1, .size = 2}, store, kPatience);
  EXPECT_THROW(last.complete(), Timeout);
}

}  // namespace
}  // namespace lockstep
