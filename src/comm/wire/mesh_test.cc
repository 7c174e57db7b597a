// Tests how the ranks of a wire group connect, with a single real rank.
#include "src/comm/wire/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/testing/scarce_descriptors.h"
#include "src/net/wait.h"
#include "src/store/host_address.h"
#include "src/store/testing/watched_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Pair;

// Connects all ranks.
Mesh form(const GroupIdentity& identity, Store& store, Deadline deadline) {
  std::vector<int> others;
  for (int rank = 0; rank < identity.size; ++rank)
    if (rank != identity.rank) others.push_back(rank);
  return Mesh(identity, store, "127.0.0.1", others, deadline);
}

TEST(AMesh, SaysWhichRanksOfTheJobDidNotCome) {
  const auto store = open_store("memory:");
  const GroupIdentity identity{
      .name = "[5,7,9]", .rank = 0, .size = 3, .members = {5, 7, 9}};
  try {
    const Mesh mesh(identity, *store, "127.0.0.1", {1, 2}, 20ms);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing: rank 1 (rank 7 of the job), "
                                        "rank 2 (rank 9 of the job)"));
  }
}

// Where the port is in a value of the store that holds an invitation, and in
// the part of it in the value that holds all.
constexpr std::size_t kPortOffset = 1 + sizeof(std::uint32_t);
constexpr std::size_t kPortInAll = sizeof(std::uint32_t) + kPortOffset;

// A store in which rank 1's invitation leads to a port where no process
// listens.
class MisleadingStore : public WatchedStore {
 public:
  MisleadingStore(std::shared_ptr<Store> store, int port)
      : WatchedStore(std::move(store), [](auto) {}), port_(port) {}

  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    Bytes value = WatchedStore::get(key, deadline, cancellation);
    if (key == "group/g/wire/all")
      std::memcpy(&value[kPortInAll + value.size() / 3], &port_, sizeof port_);
    return value;
  }

 private:
  const std::int32_t port_;
};

// Three ranks, of which rank 2 cannot reach rank 1. Each rank's error names
// that pair, and no rank that it has met.
TEST(AMesh, NamesTheRanksThatCannotReachEachOther) {
  const auto store = open_store("memory:");
  // Bound, but not listening.
  const FileDescriptor deaf(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(deaf.get(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof address),
            0);
  const int port = local_address(deaf.get()).port();
  const auto misleading = std::make_shared<MisleadingStore>(store, port);
  const Deadline deadline(2s);
  // The others may have erased what they had written by then.
  WatchedStore late(store, [&](std::string_view method) {
    if (method == "compare_and_set" && deadline.expired())
      throw NetworkError("too late");
  });
  const auto text_of_rank = [&](int rank) {
    const GroupIdentity identity{.name = "g", .rank = rank, .size = 3};
    Store& own = rank == 2 ? static_cast<Store&>(*misleading) : late;
    return error_text<Timeout>([&] { form(identity, own, deadline); });
  };
  std::string of_called;
  std::thread called([&] { of_called = text_of_rank(1); });
  std::thread met(
      [&] { form({.name = "g", .rank = 0, .size = 3}, *store, kTimeout); });
  const std::string of_caller = text_of_rank(2);
  called.join();
  met.join();
  const std::string host = own_host_name();
  const std::string pair =
      "rank 2 on " + host + " cannot connect to rank 1 on " + host +
      " at 127.0.0.1:" + std::to_string(port) + ": Connection refused";
  EXPECT_THAT(of_caller, HasSubstr("missing: rank 1\n"));
  EXPECT_THAT(of_caller, HasSubstr(pair));
  EXPECT_THAT(of_called, HasSubstr("missing: rank 2\n"));
  EXPECT_THAT(of_called, HasSubstr(pair));
}

// A rank of a mesh that has formed without connections.
class LateRank {
 public:
  LateRank(int rank, int size, Store& store)
      : mesh_({.name = "late", .rank = rank, .size = size}, store, "127.0.0.1",
              {}, kTimeout) {}

  // Before, the rank answers no calls, as if it were stopped.
  void serve(std::chrono::milliseconds patience = 15s) {
    mesh_.serve(
        {.connected =
             [this](int peer, FileDescriptor socket) {
               const std::lock_guard lock(mutex_);
               if (peer == fails_with_) throw std::runtime_error("no memory");
               EXPECT_TRUE(sockets_.emplace(peer, std::move(socket)).second);
               changed_.notify_all();
             },
         .unreachable =
             [this](int peer, Mesh::Cause cause, const std::string& why) {
               const std::lock_guard lock(mutex_);
               unreachable_[peer] = {cause, why};
               changed_.notify_all();
             },
         .patience = patience});
  }

  // A connection to `peer` will make the mesh's thread fail.
  void fail_with(int peer) {
    const std::lock_guard lock(mutex_);
    fails_with_ = peer;
  }
  void call(int rank) { mesh_.call(rank); }
  void stop() { mesh_.stop(); }

  // The connection to `peer`; -1 if the deadline passes first.
  int socket_to(int peer) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kTimeout, [&] { return sockets_.contains(peer); });
    return sockets_.contains(peer) ? sockets_[peer].get() : -1;
  }
  std::pair<Mesh::Cause, std::string> why_not(int peer) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kTimeout,
                      [&] { return unreachable_.contains(peer); });
    return unreachable_[peer];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int fails_with_ = -1;
  std::map<int, FileDescriptor> sockets_;
  std::map<int, std::pair<Mesh::Cause, std::string>> unreachable_;
  Mesh mesh_;  // last: its thread calls the above
};

using LateRanks = std::vector<std::unique_ptr<LateRank>>;

// Ranks 0 to size - 1, in this process, of which those before `serving` serve.
LateRanks late_ranks(
    int size, const std::shared_ptr<Store>& store = open_store("memory:"),
    int serving = 1 << 20) {
  LateRanks ranks(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ranks[static_cast<std::size_t>(rank)] =
          std::make_unique<LateRank>(rank, size, *store);
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < std::min(size, serving); ++rank)
    ranks[static_cast<std::size_t>(rank)]->serve();
  return ranks;
}

void expect_connection(LateRank& a, int rank_a, LateRank& b, int rank_b) {
  const int from = a.socket_to(rank_b);
  const int to = b.socket_to(rank_a);
  ASSERT_GE(from, 0);
  ASSERT_GE(to, 0);
  const std::array<std::byte, 1> word{std::byte{7}};
  EXPECT_EQ(send_some(from, word).bytes, 1u);
  EXPECT_EQ(wait_for(to, POLLIN, kTimeout), WaitResult::kReady);
  std::array<std::byte, 1> heard{};
  EXPECT_EQ(receive_some(to, heard).bytes, 1u);
  EXPECT_EQ(heard, word);
}

TEST(AMeshWithoutConnections, ConnectsTwoRanksWhenOneCalls) {
  const auto ranks = late_ranks(3);
  ranks[0]->call(2);
  expect_connection(*ranks[0], 0, *ranks[2], 2);
  ranks[1]->call(0);
  expect_connection(*ranks[1], 1, *ranks[0], 0);
}

// Whichever call comes first, both ranks end with the same connection.
TEST(AMeshWithoutConnections, ConnectsRanksOnceThatCallEachOther) {
  for (int round = 0; round < 50; ++round) {
    const auto ranks = late_ranks(2);
    std::barrier both(2);
    std::thread other([&] {
      both.arrive_and_wait();
      ranks[1]->call(0);
    });
    both.arrive_and_wait();
    ranks[0]->call(1);
    other.join();
    expect_connection(*ranks[0], 0, *ranks[1], 1);
    expect_connection(*ranks[1], 1, *ranks[0], 0);
  }
}

TEST(AMeshWithoutConnections, SaysThatARankHasLeft) {
  const auto ranks = late_ranks(2);
  ranks[1]->stop();
  ranks[0]->call(1);
  EXPECT_THAT(ranks[0]->why_not(1),
              Pair(Mesh::Cause::kPeer, HasSubstr("Connection refused")));
}

// The call has been accepted by the kernel of the called rank only.
TEST(AMeshWithoutConnections, SaysThatARankHasLeftInsteadOfAnswering) {
  for (const int caller : {0, 1}) {
    auto ranks = late_ranks(2, open_store("memory:"), 0);
    auto& calling = ranks[static_cast<std::size_t>(caller)];
    calling->serve();
    calling->call(1 - caller);
    ranks[static_cast<std::size_t>(1 - caller)]->stop();
    EXPECT_EQ(calling->why_not(1 - caller).first, Mesh::Cause::kPeer);
  }
}

TEST(AMeshWithoutConnections, WaitsForARankThatAnswersLate) {
  for (const int caller : {0, 1}) {
    auto ranks = late_ranks(2, open_store("memory:"), 0);
    auto& calling = ranks[static_cast<std::size_t>(caller)];
    auto& other = ranks[static_cast<std::size_t>(1 - caller)];
    calling->serve();
    calling->call(1 - caller);
    other->call(caller);  // once it goes on
    other->serve();
    expect_connection(*calling, caller, *other, 1 - caller);
  }
}

TEST(AMeshWithoutConnections, CallsAgainAfterALackOfDescriptors) {
  const auto ranks = late_ranks(2);
  {
    const ScarceDescriptors none(0);
    ranks[0]->call(1);
    ranks[1]->call(0);
  }
  expect_connection(*ranks[0], 0, *ranks[1], 1);
}

// Each time the called rank takes the greeting and ends the connection.
TEST(AMeshWithoutConnections, GivesUpARankThatRefusesItAgainAndAgain) {
  const auto ranks = late_ranks(2, open_store("memory:"), 0);
  for (const auto& rank : ranks) rank->serve(50ms);
  {
    const ScarceDescriptors none(0);
    ranks[0]->call(1);
    EXPECT_EQ(ranks[0]->why_not(1).first, Mesh::Cause::kThisRank);
  }
  ranks[1]->call(0);
  EXPECT_EQ(ranks[1]->why_not(0).first, Mesh::Cause::kPeer);
}

TEST(AMeshWhoseThreadHasFailed, AnswersEveryCallAndIsRefused) {
  const auto ranks = late_ranks(4);
  ranks[0]->fail_with(1);
  ranks[1]->call(0);
  ASSERT_GE(ranks[1]->socket_to(0), 0);  // rank 0 has answered, and fails
  for (const int called : {1, 2, 3}) {
    if (called != 1) ranks[0]->call(called);
    EXPECT_THAT(ranks[0]->why_not(called),
                Pair(Mesh::Cause::kThisRank, HasSubstr("no memory")));
  }
  ranks[3]->call(0);
  EXPECT_EQ(ranks[3]->why_not(0).first, Mesh::Cause::kPeer);
}

// Strangers connect to rank 0; afterwards rank 1 still can.
class AMeshAmongStrangers : public testing::Test {
 protected:
  void TearDown() override {
    ranks_[1]->call(0);
    expect_connection(*ranks_[1], 1, *ranks_[0], 0);
  }

  // Connects, which takes one descriptor here.
  FileDescriptor come() const {
    FileDescriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        ::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address),
                  sizeof address),
        0);
    return stranger;
  }

  static void expect_end(const FileDescriptor& stranger) {
    EXPECT_EQ(wait_for(stranger.get(), POLLIN, kTimeout), WaitResult::kReady);
  }

  // Connects as a stranger; rank 0 refuses it only after it has accepted all
  // earlier ones.
  void be_turned_away() const {
    const FileDescriptor stranger = come();
    const std::array<std::byte, 1024> nonsense{};
    send_some(stranger.get(), nonsense);
    expect_end(stranger);
  }

 private:
  int listening_port() const {
    const Bytes invitation = store_->get("group/late/wire/0", kTimeout);
    std::int32_t port = 0;
    std::memcpy(&port, invitation.data() + kPortOffset, sizeof port);
    return port;
  }

  const std::shared_ptr<Store> store_ = open_store("memory:");
  const LateRanks ranks_ = late_ranks(2, store_);
  const int port_ = listening_port();
};

TEST_F(AMeshAmongStrangers, DropsTheOldestStrangerWhenThereAreTooMany) {
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 257; ++i) strangers.push_back(come());
  expect_end(strangers.front());
}

TEST_F(AMeshAmongStrangers, DropsTheOldestStrangerWhenDescriptorsRunOut) {
  const FileDescriptor oldest = come();
  be_turned_away();
  const ScarceDescriptors limit(1);
  const FileDescriptor next = come();
  expect_end(oldest);
}

}  // namespace
}  // namespace lockstep
