// How the ranks of a host come to share memory, and who is blamed when they do
// not. Ranks are threads; one of them may be a puppet of the test.
#include "lockstep/comm/shm/local_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/net/process_handle.h"
#include "lockstep/net/testing/scarce_descriptors.h"
#include "lockstep/net/unix_socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// Long enough to never pass in a test that works.
constexpr auto kPatience = 1min;

constexpr std::size_t kSecretBytes = 32;

// What rank 0 of group "g" invites the others with: a secret and a name.
Bytes invitation(Store& store) {
  return store.get("group/g/shm/leader", kPatience);
}

UnixConnection connect_to_leader(Store& store) {
  const Bytes invited = invitation(store);
  return connect_unix(to_text(std::span(invited).subspan(kSecretBytes)),
                      kPatience);
}

// Comes as rank `rank`.
UnixConnection join_as(int rank, Store& store) {
  struct Hello {
    std::array<char, 8> magic{'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};
    std::uint32_t version = 2;
    std::int32_t rank = 0;
    std::array<std::byte, kSecretBytes> secret{};
  } hello;
  hello.rank = rank;
  std::memcpy(hello.secret.data(), invitation(store).data(), kSecretBytes);
  UnixConnection leader = connect_to_leader(store);
  const FileDescriptor self = open_own_process();
  const std::array descriptors{self.get()};
  leader.send(std::as_bytes(std::span(&hello, 1)), descriptors, kPatience);
  return leader;
}

// A stranger that is done with after all who came before it have been heard.
void be_turned_away(Store& store) {
  UnixConnection stranger = connect_to_leader(store);
  stranger.send(std::array{std::byte{1}}, {}, kPatience);
  EXPECT_THROW(stranger.receive(kPatience), NetworkError);
}

// The error with which the exchange ends on a rank of a group of three.
std::string error_on(int rank, Store& store) {
  const GroupIdentity identity{.name = "g", .rank = rank, .size = 3};
  try {
    exchange_local(identity, store, nullptr, kPatience);
  } catch (const PeerFailure& error) {
    return "PeerFailure " + std::to_string(error.rank()) + ": " + error.what();
  } catch (const Timeout& error) {
    return std::string("Timeout: ") + error.what();
  } catch (const InvalidArgument& error) {
    return std::string("InvalidArgument: ") + error.what();
  } catch (const Error& error) {
    return std::string("Error: ") + error.what();
  }
  return "no error";
}

TEST(ARankThatDiesWhileAGroupForms, IsNamedByAllOthers) {
  const auto store = open_store("memory:");
  std::string leaders;
  std::thread leader([&] { leaders = error_on(0, *store); });
  join_as(1, *store);  // and is gone
  const std::string late = error_on(2, *store);
  leader.join();
  for (const std::string& error : {leaders, late})
    EXPECT_THAT(error, HasSubstr("PeerFailure 1: rank 1 of group \"g\" ended"));
}

TEST(TwoProcessesThatAreOneRank, AreAnErrorOfAllThatHaveCome) {
  const auto store = open_store("memory:");
  std::string leaders;
  std::thread leader([&] { leaders = error_on(0, *store); });
  UnixConnection first = join_as(1, *store);
  be_turned_away(*store);
  const UnixConnection again = join_as(1, *store);
  leader.join();
  constexpr const char* kText =
      "group \"g\" of 3 ranks: a process joined as rank 1, which is taken";
  EXPECT_THAT(leaders, HasSubstr(std::string("InvalidArgument: ") + kText));
  EXPECT_THAT(to_text(first.receive(kPatience).bytes), HasSubstr(kText));
}

// Rank 0 of a group of two waits for rank 1 while strangers come.
class AGroupThatForms : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(run(1), "formed");
    leader_.join();
    EXPECT_EQ(leaders_, "formed");
  }

  // Connects, which takes one descriptor here.
  UnixConnection come() const { return connect_unix(name_, kPatience); }

  void turn_one_away() const { be_turned_away(*store_); }

  static void expect_end(UnixConnection& stranger) {
    EXPECT_THROW(stranger.receive(kPatience), NetworkError);
  }

 private:
  std::string run(int rank) const {
    const GroupIdentity identity{.name = "g", .rank = rank, .size = 2};
    try {
      exchange_local(identity, *store_, nullptr, kPatience);
    } catch (const Error& error) {
      return error.what();
    }
    return "formed";
  }

  const std::shared_ptr<Store> store_ = open_store("memory:");
  std::string leaders_;
  std::thread leader_{[this] { leaders_ = run(0); }};
  const std::string name_ = to_text(
      std::span<const std::byte>(invitation(*store_)).subspan(kSecretBytes));
};

TEST_F(AGroupThatForms, DropsTheOldestStrangerWhenThereAreTooMany) {
  std::vector<UnixConnection> strangers;
  for (int i = 0; i < 257; ++i) strangers.push_back(come());
  expect_end(strangers.front());
}

TEST_F(AGroupThatForms, DropsTheOldestStrangerWhenDescriptorsRunOut) {
  LOCKSTEP_NEEDS_SCARCE_DESCRIPTORS();
  UnixConnection oldest = come();
  turn_one_away();
  const ScarceDescriptors limit(1);
  const UnixConnection next = come();
  expect_end(oldest);
}

}  // namespace
}  // namespace lockstep
