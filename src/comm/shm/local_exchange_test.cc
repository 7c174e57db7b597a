// Tests how the ranks of a host set up shared memory, and which rank the error
// names if that fails. Ranks are threads; the test itself may act as one of
// them.
#include "src/comm/shm/local_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/shm/exchange_messages.h"
#include "src/net/process_handle.h"
#include "src/net/testing/another_user.h"
#include "src/net/testing/scarce_descriptors.h"
#include "src/net/unix_socket.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kSecretBytes = sizeof(Secret);

// The invitation of rank 0 of group "g": a secret and a name.
Bytes invitation(Store& store) {
  return store.get("group/g/shm/leader", kTimeout);
}

UnixConnection connect_to_leader(Store& store) {
  const Bytes invited = invitation(store);
  return connect_unix(to_text(std::span(invited).subspan(kSecretBytes)),
                      kTimeout);
}

// Greets rank 0; returns both challenges.
Challenges be_introduced(UnixConnection& leader) {
  const ExchangeGreeting greeting{.challenge = random_value<Challenge>()};
  leader.send(bytes_of(greeting), {}, kTimeout);
  const auto introduction =
      read_message<ExchangeIntroduction>(leader.receive(kTimeout).bytes);
  return {.client = greeting.challenge,
          .server = introduction.value().challenge};
}

void say_hello(int rank, UnixConnection& leader, const Proof& proof) {
  const ExchangeHello hello{.rank = rank, .proof = proof};
  const FileDescriptor self = open_own_process();
  const std::array descriptors{self.get()};
  leader.send(bytes_of(hello), descriptors, kTimeout);
}

// Connects as rank `rank`.
UnixConnection join_as(int rank, Store& store) {
  UnixConnection leader = connect_to_leader(store);
  Secret secret;
  std::memcpy(secret.data(), invitation(store).data(), secret.size());
  const Challenges challenges = be_introduced(leader);
  say_hello(rank, leader, prove(secret, Prover::kClient, challenges));
  return leader;
}

// Connects as a stranger; rank 0 refuses it only after it has read all earlier
// guests' messages.
void be_turned_away(Store& store) {
  UnixConnection stranger = connect_to_leader(store);
  stranger.send(std::array{std::byte{1}}, {}, kTimeout);
  EXPECT_THROW(stranger.receive(kTimeout), NetworkError);
}

// The error of the exchange, as text.
std::string error_of(const GroupIdentity& identity, Store& store,
                     OtherUsers others = OtherUsers::kTurnedAway) {
  try {
    exchange_local(identity, store, {.others = others}, kTimeout);
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

// The same on a rank of a group of three.
std::string error_on(int rank, Store& store) {
  return error_of({.name = "g", .rank = rank, .size = 3}, store);
}

TEST(ARankThatDiesWhileAGroupForms, IsNamedByAllOthers) {
  const auto store = open_store("memory:");
  std::string leaders;
  std::thread leader([&] { leaders = error_on(0, *store); });
  join_as(1, *store);  // and disconnects
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
  EXPECT_THAT(to_text(first.receive(kTimeout).bytes), HasSubstr(kText));
}

// error_of() on a rank whose process runs as another user.
std::string foreign_error_of(const GroupIdentity& identity, Store& store,
                             OtherUsers others) {
  const AnotherUser user;
  return error_of(identity, store, others);
}

TEST(ProcessesOfTwoUsers, ShareNoMemoryWithoutAToken) {
  LOCKSTEP_NEEDS_ROOT();
  const GroupIdentity zero{.name = "g", .rank = 0, .size = 2};
  const GroupIdentity one{.name = "g", .rank = 1, .size = 2};
  constexpr auto kRefuse = OtherUsers::kTurnedAway;
  const auto store = open_store("memory:");
  std::string leaders;
  std::thread leader([&] { leaders = error_of(zero, *store, kRefuse); });
  std::string others;
  std::thread other([&] { others = foreign_error_of(one, *store, kRefuse); });
  other.join();
  EXPECT_EQ(error_of(one, *store, kRefuse), "no error");
  leader.join();
  EXPECT_EQ(leaders, "no error");
  EXPECT_THAT(others, HasSubstr("InvalidArgument: rank 1 of group "
                                "\"g\" runs as user 65534"));
  EXPECT_THAT(others, HasSubstr("LOCKSTEP_TOKEN"));

  leader =
      std::thread([&] { leaders = foreign_error_of(zero, *store, kRefuse); });
  EXPECT_THAT(error_of(one, *store, kRefuse),
              HasSubstr("share its memory as user 65534"));
  other = std::thread([&] { others = foreign_error_of(one, *store, kRefuse); });
  leader.join();
  other.join();
  EXPECT_EQ(leaders, "no error");
  EXPECT_EQ(others, "no error");
}

TEST(ProcessesOfTwoUsers, ShareMemoryWhereATokenGuardsTheSecret) {
  LOCKSTEP_NEEDS_ROOT();
  const auto store = open_store("memory:");
  std::string leaders;
  std::thread leader([&] {
    leaders = error_of({.name = "g", .rank = 0, .size = 2}, *store,
                       OtherUsers::kAdmitted);
  });
  std::thread([&] {
    EXPECT_EQ(foreign_error_of({.name = "g", .rank = 1, .size = 2}, *store,
                               OtherUsers::kAdmitted),
              "no error");
  }).join();
  leader.join();
  EXPECT_EQ(leaders, "no error");
}

TEST(AStranger, OfAnotherUserGetsNoDescriptorsThoughItKnowsTheSecret) {
  LOCKSTEP_NEEDS_ROOT();
  const auto store = open_store("memory:");
  std::string leaders;
  std::thread leader(
      [&] { leaders = error_of({.name = "g", .rank = 0, .size = 2}, *store); });
  std::thread([&] {
    const AnotherUser user;
    UnixConnection stranger = connect_to_leader(*store);
    const auto answer = stranger.receive(kTimeout);
    EXPECT_TRUE(answer.descriptors.empty());
    EXPECT_THAT(to_text(answer.bytes), HasSubstr("runs as user 0"));
    EXPECT_THROW(stranger.receive(kTimeout), NetworkError);
  }).join();
  // The group forms nevertheless.
  EXPECT_EQ(error_of({.name = "g", .rank = 1, .size = 2}, *store), "no error");
  leader.join();
  EXPECT_EQ(leaders, "no error");
}

TEST(AStranger, WhoHasTakenTheNameOfRank0sSocketGetsNoDescriptors) {
  const auto store = open_store("memory:");
  UnixListener listener;
  Bytes invited(kSecretBytes, std::byte{1});
  const Bytes name = to_bytes(listener.name());
  invited.insert(invited.end(), name.begin(), name.end());
  store->set("group/g/shm/leader", invited, kTimeout);
  std::string error;
  std::thread rank([&] {
    error = error_of({.name = "g", .rank = 1, .size = 2}, *store,
                     OtherUsers::kAdmitted);
  });
  wait_for(listener.descriptor(), POLLIN, kTimeout);
  {
    UnixConnection victim(listener.accept());
    const auto first = victim.receive(kTimeout);
    EXPECT_TRUE(first.descriptors.empty());
    EXPECT_THAT(to_text(first.bytes), Not(HasSubstr(std::string(8, '\1'))));
    victim.send(bytes_of(ExchangeIntroduction{}), {}, kTimeout);
    EXPECT_THROW(victim.receive(kTimeout), NetworkError);
  }
  rank.join();
  EXPECT_THAT(error, HasSubstr("PeerFailure 0: rank 0 of group \"g\" ended"));
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
  UnixConnection come() const { return connect_unix(name_, kTimeout); }

  void turn_one_away() const { be_turned_away(*store_); }

  static void expect_end(UnixConnection& stranger) {
    EXPECT_THROW(stranger.receive(kTimeout), NetworkError);
  }

 private:
  std::string run(int rank) const {
    const GroupIdentity identity{.name = "g", .rank = rank, .size = 2};
    try {
      exchange_local(identity, *store_, {}, kTimeout);
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

TEST_F(AGroupThatForms, AdmitsNoStrangerThatSendsRank0sProofBack) {
  UnixConnection stranger = come();
  const ExchangeGreeting greeting{.challenge = random_value<Challenge>()};
  stranger.send(bytes_of(greeting), {}, kTimeout);
  const auto introduction =
      read_message<ExchangeIntroduction>(stranger.receive(kTimeout).bytes);
  say_hello(1, stranger, introduction.value().proof);
  expect_end(stranger);
}

TEST_F(AGroupThatForms, DropsTheOldestStrangerWhenDescriptorsRunOut) {
  UnixConnection oldest = come();
  turn_one_away();
  const ScarceDescriptors limit(1);
  const UnixConnection next = come();
  expect_end(oldest);
}

}  // namespace
}  // namespace lockstep
