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
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/socket.h"
#include "src/net/testing/scarce_descriptors.h"
#include "src/net/wait.h"

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

  // The port is at this offset of rank 0's invitation.
  int listening_port() const {
    const Bytes invitation = store_->get("group/g/wire/0", kTimeout);
    std::int32_t port = 0;
    std::memcpy(&port, invitation.data() + sizeof(std::uint32_t), sizeof port);
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
