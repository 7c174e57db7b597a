// The contract of every store: the same tests for each of them, with and
// without a prefix.
#include "lockstep/store/store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_timeout.h"
#include "src/store/tcp_store_server.h"
#include "src/store/testing/store_testing.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::Combine;
using ::testing::Values;

constexpr int kThreads = 8;

std::string text_of(Store& store, const std::string& key) {
  return to_text(store.get(key, kTimeout));
}

// Runs `body(store, index)` in several threads, each with its own client.
void run_in_threads(auto open, auto body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      const std::shared_ptr<Store> store = open();
      body(*store, i);
    });
  for (std::thread& thread : threads) thread.join();
}

class EveryStore
    : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  EveryStore() {
    if (scheme() == "tcp")
      server_ = std::make_unique<TcpStoreServer>("127.0.0.1", 0, "secret");
    // Stays open, because a file:// store lasts while a process has it open.
    first_ = open_anew();
  }

  static std::string scheme() { return std::get<0>(GetParam()); }
  static std::string prefix() { return std::get<1>(GetParam()); }

  // A client of the test's one store.
  std::shared_ptr<Store> open() const {
    std::shared_ptr<Store> store = scheme() == "memory" ? first_ : open_anew();
    return prefix().empty() ? store : with_prefix(store, prefix());
  }

  // Ends the test's store, including its server.
  void close() {
    first_.reset();
    server_.reset();
  }

  const int descriptors_before_ = count_descriptors();

 private:
  std::shared_ptr<Store> open_anew() const {
    const StoreOptions options{.token = "secret"};
    if (scheme() == "memory") return open_store("memory:", options);
    if (scheme() == "tcp") return open_store(server_->url(), options);
    return open_store("file://" + (folder_.path() / "store").string(), options);
  }

  TestDirectory folder_;
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> first_;
};

TEST_P(EveryStore, GivesBackWhatAnyClientSet) {
  const auto one = open();
  const auto other = open();
  const Bytes value{std::byte{0}, std::byte{255}, std::byte{10}};
  one->set("key", value, kTimeout);
  one->set("empty", {}, kTimeout);
  EXPECT_EQ(other->get("key", kTimeout), value);
  EXPECT_EQ(other->get("empty", kTimeout), Bytes());
  other->set("key", to_bytes("new"), kTimeout);
  EXPECT_EQ(text_of(*one, "key"), "new");
}

TEST_P(EveryStore, TakesKeysUpToTheLimitAndNoLonger) {
  const auto store = open();
  const std::string key(Store::kMaxKeyBytes - prefix().size(), 'k');
  store->set(key, to_bytes("value"), kTimeout);
  EXPECT_EQ(text_of(*store, key), "value");
  EXPECT_THROW(store->set(key + "k", {}, kTimeout), InvalidArgument);
  EXPECT_THROW(store->get(key + "k", kTimeout), InvalidArgument);
  EXPECT_THROW(store->wait_any(std::vector{key, key + "k"}, kTimeout),
               InvalidArgument);
}

TEST_P(EveryStore, TakesValuesUpToTheLimitAndNoLonger) {
  if (!prefix().empty()) GTEST_SKIP() << "a prefix adds nothing to values";
  const auto store = open();
  Bytes value(Store::kMaxValueBytes);
  for (std::size_t i = 0; i < value.size(); ++i)
    value[i] = static_cast<std::byte>(i * 7 + i / 256);
  store->set("key", value, kTimeout);
  EXPECT_TRUE(store->compare_and_set("key", value, value, kTimeout) == value);
  EXPECT_TRUE(store->get("key", kTimeout) == value);

  value.push_back(std::byte{1});
  EXPECT_THROW(store->set("other", value, kTimeout), InvalidArgument);
  EXPECT_THROW(store->set_last_will({"key"}, value, kTimeout), InvalidArgument);
  EXPECT_THROW(store->compare_and_set("key", value, {}, kTimeout),
               InvalidArgument);
  EXPECT_FALSE(store->erase("other", kTimeout));
}

// A file's lock belongs to the parent and the child together: both could write
// at a time.
TEST_P(EveryStore, RefusesAForkedChildOfTheProcessThatOpenedIt) {
  const auto store = open();
  store->set("key", to_bytes("parent"), kTimeout);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refuses = [](const auto& call) {
      return error_text<InvalidArgument>(call).find(
                 "this process was forked") != std::string::npos;
    };
    const bool refused =
        refuses([&] { store->set("key", to_bytes("child"), kTimeout); }) &&
        refuses([&] { store->get("key", kTimeout); }) && refuses([&] {
          store->wait_any(std::vector<std::string>{"key"}, kTimeout);
        }) &&
        refuses([&] { store->add("number", 1, kTimeout); }) &&
        refuses([&] { store->erase("key", kTimeout); }) &&
        refuses([&] { store->set_last_will({"key"}, {}, kTimeout); });
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(*store, "key"), "parent");
}

TEST_P(EveryStore, LetsAGetWaitForItsKey) {
  std::thread late([&] { open()->set("key", to_bytes("value"), kTimeout); });
  EXPECT_EQ(text_of(*open(), "key"), "value");
  late.join();
}

TEST_P(EveryStore, HoldsUpNoOtherThreadWhileOneWaits) {
  const auto store = open();
  std::thread waiting([&] {
    store->set("waiting", {}, kTimeout);
    EXPECT_EQ(text_of(*store, "late"), "value");
  });
  store->get("waiting", kTimeout);
  for (int i = 0; i < 20; ++i) store->add("count", 1, kTimeout);
  store->set("late", to_bytes("value"), kTimeout);
  waiting.join();
}

TEST_P(EveryStore, WaitsForAnyOfManyKeysAndNamesTheFirst) {
  const auto store = open();
  std::vector<std::string> keys;
  for (int i = 0; i < 3000; ++i) keys.push_back("key " + std::to_string(i));
  std::thread late([&] { open()->set("key 2345", {}, kTimeout); });
  EXPECT_EQ(store->wait_any(keys, kTimeout), 2345u);
  late.join();
  store->set("key 17", {}, kTimeout);
  EXPECT_EQ(store->wait_any(keys, kTimeout), 17u);
  const std::vector<std::string> twice{"absent", "key 17", "absent", "key 17"};
  EXPECT_EQ(store->wait_any(twice, kTimeout), 1u);
}

TEST_P(EveryStore, WakesEveryoneWhoWaitsForAKey) {
  std::thread late([&] {
    const auto store = open();
    for (int i = 0; i < kThreads; ++i)
      store->get("waiting " + std::to_string(i), kTimeout);
    store->set("start", to_bytes("now"), kTimeout);
  });
  run_in_threads([&] { return open(); },
                 [](Store& store, int i) {
                   store.set("waiting " + std::to_string(i), {}, kTimeout);
                   const std::vector<std::string> keys{"start", "start"};
                   EXPECT_EQ(store.wait_any(keys, kTimeout), 0u);
                   EXPECT_EQ(text_of(store, "start"), "now");
                 });
  late.join();
}

TEST_P(EveryStore, GetsManyKeysAtOnceWhenTheLastExists) {
  const auto store = open();
  std::vector<std::string> keys;
  for (int i = 0; i < 3000; ++i) keys.push_back("key " + std::to_string(i));
  keys.push_back("key 7");  // twice
  std::thread late([&] {
    const auto other = open();
    for (int i = 2999; i >= 0; --i)
      other->set(keys[static_cast<std::size_t>(i)],
                 to_bytes("value " + std::to_string(i)), kTimeout);
  });
  const std::vector<Bytes> values = store->multi_get(keys, kTimeout);
  late.join();
  ASSERT_EQ(values.size(), keys.size());
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(to_text(values[static_cast<std::size_t>(i)]),
              "value " + std::to_string(i));
  EXPECT_EQ(to_text(values.back()), "value 7");
}

TEST_P(EveryStore, ReturnsNoValueOfAKeyThatWasErasedMeanwhile) {
  const auto store = open();
  const std::vector<std::string> keys{"first", "second"};
  std::thread late([&] {
    const auto other = open();
    other->set("first", to_bytes("old"), kTimeout);
    other->erase("first", kTimeout);
    other->set("second", to_bytes("there"), kTimeout);
    other->set("first", to_bytes("new"), kTimeout);
  });
  const std::vector<Bytes> values = store->multi_get(keys, kTimeout);
  late.join();
  EXPECT_EQ(to_text(values.at(0)), "new");
  EXPECT_EQ(to_text(values.at(1)), "there");
}

TEST_P(EveryStore, RefusesValuesThatTogetherExceedTheLimit) {
  const auto store = open();
  const Bytes large(Store::kMaxValueBytes - 10);
  store->set("large", large, kTimeout);
  store->set("small", to_bytes("0123456789"), kTimeout);
  const std::vector<std::string> fits{"large", "small"};
  EXPECT_EQ(store->multi_get(fits, kTimeout).at(1).size(), 10u);
  const std::vector<std::string> twice{"large", "large"};
  const auto text =
      error_text<InvalidArgument>([&] { store->multi_get(twice, kTimeout); });
  EXPECT_NE(text.find("bytes together"), std::string::npos) << text;
  // The connection still serves other calls.
  EXPECT_EQ(store->multi_get(fits, kTimeout).at(1).size(), 10u);
}

TEST_P(EveryStore, RefusesToWaitForNothingOrForTooMuch) {
  const auto store = open();
  EXPECT_THROW(store->multi_get({}, kTimeout), InvalidArgument);
  EXPECT_THROW(store->wait_any({}, kTimeout), InvalidArgument);
  const std::vector<std::string> keys(20'000, std::string(900, 'k'));
  EXPECT_THROW(store->wait_any(keys, kTimeout), InvalidArgument);
}

TEST_P(EveryStore, AddsToNumbersInText) {
  const auto store = open();
  EXPECT_EQ(store->add("count", 5, kTimeout), 5);
  EXPECT_EQ(store->add("count", -7, kTimeout), -2);
  EXPECT_EQ(text_of(*store, "count"), "-2");
  store->set("count", to_bytes("40"), kTimeout);
  EXPECT_EQ(store->add("count", 2, kTimeout), 42);
}

TEST_P(EveryStore, RefusesToAddToWhatIsNoNumberOrHasNoRoom) {
  const auto store = open();
  store->set("word", to_bytes("12 apples"), kTimeout);
  EXPECT_THROW(store->add("word", 1, kTimeout), InvalidArgument);
  EXPECT_EQ(text_of(*store, "word"), "12 apples");
  store->set("most", to_bytes("9223372036854775807"), kTimeout);
  EXPECT_EQ(store->add("most", 0, kTimeout), INT64_MAX);
  EXPECT_THROW(store->add("most", 1, kTimeout), InvalidArgument);
  EXPECT_EQ(store->add("most", -1, kTimeout), INT64_MAX - 1);
}

TEST_P(EveryStore, LosesNoAddOfManyThreads) {
  constexpr int kAdds = 50;
  run_in_threads([&] { return open(); },
                 [](Store& store, int) {
                   for (int i = 0; i < kAdds; ++i)
                     store.add("count", 1, kTimeout);
                 });
  EXPECT_EQ(open()->add("count", 0, kTimeout), kThreads * kAdds);
}

TEST_P(EveryStore, ComparesBeforeItSets) {
  const auto store = open();
  const auto cas = [&](std::optional<std::string> expected,
                       const std::string& desired) {
    std::optional<Bytes> bytes;
    if (expected) bytes = to_bytes(*expected);
    return to_text(
        store->compare_and_set("key", bytes, to_bytes(desired), kTimeout));
  };
  EXPECT_EQ(cas("absent", "one"), "");
  EXPECT_EQ(cas(std::nullopt, "one"), "one");
  EXPECT_EQ(cas(std::nullopt, "two"), "one");
  EXPECT_EQ(cas("on", "two"), "one");
  EXPECT_EQ(cas("one", "two"), "two");
  EXPECT_EQ(text_of(*store, "key"), "two");
}

TEST_P(EveryStore, LetsExactlyOneCompareAndSetWin) {
  std::atomic<int> winners = 0;
  run_in_threads([&] { return open(); },
                 [&](Store& store, int i) {
                   const std::string own = std::to_string(i);
                   const Bytes held = store.compare_and_set(
                       "leader", std::nullopt, to_bytes(own), kTimeout);
                   if (to_text(held) == own) ++winners;
                   EXPECT_EQ(held, store.get("leader", kTimeout));
                 });
  EXPECT_EQ(winners, 1);
}

TEST_P(EveryStore, SaysWhetherWhatItErasedWasThere) {
  const auto store = open();
  store->set("key", to_bytes("value"), kTimeout);
  EXPECT_TRUE(store->erase("key", kTimeout));
  EXPECT_FALSE(store->erase("key", kTimeout));
  EXPECT_EQ(store->add("key", 1, kTimeout), 1);
}

TEST_P(EveryStore, NamesTheKeyThatNeverCame) {
  const auto store = open();
  const std::string message = error_text<Timeout>(
      [&] { store->get("ranks/3/address", Deadline(20ms)); });
  EXPECT_NE(message.find("get(\"" + prefix() + "ranks/3/address\") at " +
                         scheme() + ":"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("next:"), std::string::npos) << message;
  const std::vector<std::string> keys(10, "many");
  const std::string any =
      error_text<Timeout>([&] { store->wait_any(keys, Deadline(20ms)); });
  EXPECT_NE(any.find("many\" and 2 more) at"), std::string::npos) << any;
}

TEST_P(EveryStore, GivesNoLateAnswerAfterATimeout) {
  const auto store = open();
  for (int i = 0; i < 5; ++i)
    EXPECT_THROW(store->get("late", Deadline(1ms)), Timeout);
  store->set("late", to_bytes("late"), kTimeout);
  store->set("other", to_bytes("other"), kTimeout);
  EXPECT_EQ(text_of(*store, "other"), "other");
  EXPECT_EQ(store->add("count", 3, kTimeout), 3);
}

TEST_P(EveryStore, EndsAWaitThatIsCancelled) {
  const auto store = open();
  Cancellation cancellation;
  std::thread canceller([&] { cancellation.cancel(); });
  EXPECT_THROW(store->get("never", kTimeout, &cancellation), Cancelled);
  canceller.join();
  const std::vector<std::string> keys{"never", "ever"};
  EXPECT_THROW(store->wait_any(keys, kTimeout, &cancellation), Cancelled);
  store->set("never", to_bytes("now"), kTimeout);
  EXPECT_EQ(text_of(*store, "never"), "now");
}

TEST_P(EveryStore, ExecutesTheLastWillOfAClientThatIsDestroyed) {
  if (scheme() == "memory") GTEST_SKIP() << "no reader is left";
  auto leaving = open();
  leaving->set_last_will({"old"}, to_bytes("old"), kTimeout);
  leaving->set_last_will({"will", "any"}, to_bytes("gone"), kTimeout);
  const auto store = open();
  EXPECT_THROW(store->get("will", Deadline(20ms)), Timeout);
  leaving.reset();
  EXPECT_EQ(text_of(*store, "any"), "gone");
  EXPECT_EQ(text_of(*store, "will"), "gone");
  EXPECT_FALSE(store->erase("old", kTimeout));
}

TEST_P(EveryStore, ExecutesNoLastWillThatWasWithdrawn) {
  auto leaving = open();
  leaving->withdraw_last_will(kTimeout);
  leaving->set_last_will({"will"}, to_bytes("gone"), kTimeout);
  leaving->withdraw_last_will(kTimeout);
  leaving.reset();
  EXPECT_THROW(open()->get("will", Deadline(50ms)), Timeout);
}

TEST_P(EveryStore, LeavesNoFileDescriptorsBehind) {
  {
    const auto store = open();
    store->set_last_will({"will"}, {}, kTimeout);
    EXPECT_THROW(store->get("never", Deadline(1ms)), Timeout);
  }
  close();
  EXPECT_EQ(count_descriptors(), descriptors_before_);
}

INSTANTIATE_TEST_SUITE_P(
    Store, EveryStore,
    Combine(Values("memory", "file", "tcp"), Values("", "group/0/")),
    [](const auto& param) {
      return std::get<0>(param.param) +
             (std::get<1>(param.param).empty() ? "" : "_prefixed");
    });

TEST(Prefix, KeepsGroupsApart) {
  const std::shared_ptr<Store> store = open_store("memory:");
  const auto a = with_prefix(store, "a/");
  const auto b = with_prefix(with_prefix(store, "b/"), "c/");
  a->set("key", to_bytes("of a"), kTimeout);
  b->set("key", to_bytes("of b"), kTimeout);
  EXPECT_EQ(text_of(*a, "key"), "of a");
  EXPECT_EQ(text_of(*store, "a/key"), "of a");
  EXPECT_EQ(text_of(*store, "b/c/key"), "of b");
}

TEST(OpenStore, RefusesAUrlThatNamesNoStore) {
  const std::vector<std::string> urls{"",
                                      "memory",
                                      "http://host:1",
                                      "file://relative",
                                      "file:",
                                      "tcp://",
                                      "tcp://host",
                                      "tcp://:1",
                                      "tcp://host:",
                                      "tcp://host:port",
                                      "tcp://host:-1",
                                      "tcp://host:65536",
                                      "tcp://::1:1",
                                      "tcp://host:1x",
                                      "tcp://[::1]"};
  for (const std::string& url : urls) {
    const std::string message = error_text([&] { open_store(url); });
    EXPECT_NE(message.find("\"" + url + "\" names no store"), std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace lockstep
