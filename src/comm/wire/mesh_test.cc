// Tests how the ranks of a wire group connect, with a single real rank.
#include "src/comm/wire/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
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

TEST(AMesh, SaysWhichRanksOfTheJobDidNotCome) {
  const auto store = open_store("memory:");
  const GroupIdentity identity{
      .name = "[5,7,9]", .rank = 0, .size = 3, .members = {5, 7, 9}};
  try {
    connect_mesh(identity, *store, "127.0.0.1", 20ms);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing: rank 1 (rank 7 of the job), "
                                        "rank 2 (rank 9 of the job)"));
  }
}

// Where the port is in an invitation.
constexpr std::size_t kPortOffset = sizeof(std::uint32_t);

// A store in which rank 1's invitation leads to a port where no process
// listens.
class MisleadingStore : public WatchedStore {
 public:
  MisleadingStore(std::shared_ptr<Store> store, int port)
      : WatchedStore(std::move(store), [](auto) {}), port_(port) {}

  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    Bytes value = WatchedStore::get(key, deadline, cancellation);
    if (key == "group/g/wire/1")
      std::memcpy(value.data() + kPortOffset, &port_, sizeof port_);
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
    return error_text<Timeout>(
        [&] { connect_mesh(identity, own, "127.0.0.1", deadline); });
  };
  std::string of_called;
  std::thread called([&] { of_called = text_of_rank(1); });
  std::thread met([&] {
    connect_mesh({.name = "g", .rank = 0, .size = 3}, *store, "127.0.0.1",
                 kTimeout);
  });
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

// A group of two ranks, where rank 0 waits for rank 1 while strangers connect.
class AMeshThatForms : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(run(1), "formed");
    leader_.join();
    EXPECT_EQ(leaders_, "formed");
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
  std::string run(int rank) const {
    const GroupIdentity identity{.name = "g", .rank = rank, .size = 2};
    try {
      connect_mesh(identity, *store_, "127.0.0.1", kTimeout);
    } catch (const Error& error) {
      return error.what();
    }
    return "formed";
  }

  int listening_port() const {
    const Bytes invitation = store_->get("group/g/wire/0", kTimeout);
    std::int32_t port = 0;
    std::memcpy(&port, invitation.data() + kPortOffset, sizeof port);
    return port;
  }

  const std::shared_ptr<Store> store_ = open_store("memory:");
  std::string leaders_;
  std::thread leader_{[this] { leaders_ = run(0); }};
  const int port_ = listening_port();
};

TEST_F(AMeshThatForms, DropsTheOldestStrangerWhenThereAreTooMany) {
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 257; ++i) strangers.push_back(come());
  expect_end(strangers.front());
}

TEST_F(AMeshThatForms, DropsTheOldestStrangerWhenDescriptorsRunOut) {
  const FileDescriptor oldest = come();
  be_turned_away();
  const ScarceDescriptors limit(1);
  const FileDescriptor next = come();
  expect_end(oldest);
}

}  // namespace
}  // namespace lockstep
