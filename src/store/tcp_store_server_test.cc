// Unauthenticated, slow and faulty clients of a tcp:// store's server must not
// affect other clients.
#include "src/store/tcp_store_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/frame.h"
#include "src/net/free_port.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/testing/scarce_descriptors.h"
#include "src/store/store_protocol.h"
#include "src/store/testing/raw_peer.h"
#include "src/store/testing/store_testing.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr const char* kLoopback = "127.0.0.1";
// The server's last message to a welcome client: its verdict.
constexpr std::size_t kGreetingBytes = kFrameHeaderBytes + 1 + 24;
// The server's messages before the verdict.
constexpr std::size_t kIntroductionBytes =
    kPreambleBytes + kFrameHeaderBytes + sizeof(Introduction);

class TcpServer : public testing::Test {
 protected:
  std::shared_ptr<Store> open(const std::string& token = "secret") {
    return open_store(server_->url(), {.token = token});
  }

  // The server still works.
  void expect_service() {
    const auto store = open();
    store->set("service", to_bytes("yes"), kTimeout);
    EXPECT_EQ(to_text(store->get("service", kTimeout)), "yes");
  }

  int port() const { return server_->port(); }

  std::unique_ptr<TcpStoreServer> server_ =
      std::make_unique<TcpStoreServer>(kLoopback, 0, "secret");
};

TEST_F(TcpServer, TurnsAwayWhoeverHasAnotherToken) {
  for (const std::string token : {"", "secre", "secret ", "SECRET"}) {
    const std::string message = error_text<NetworkError>([&] { open(token); });
    EXPECT_THAT(message,
                HasSubstr(server_->url() + " failed: the server does not have "
                                           "this process's job token"));
    EXPECT_THAT(message, HasSubstr("LOCKSTEP_TOKEN"));
    RawPeer liar(port());
    liar.introduce(token);
    EXPECT_THAT(liar.hear_all(), HasSubstr("wrong job token"));
  }
  expect_service();
}

TEST_F(TcpServer, TakesNoProofThatWasMadeForAnotherConnection) {
  RawPeer member(port());
  member.greet();
  const Bytes preamble_and_header =
      member.hear(kPreambleBytes + kFrameHeaderBytes);
  const Introduction server =
      parse_introduction(member.hear(sizeof(Introduction)));
  RawPeer stranger(port());
  stranger.greet();
  stranger.hear(preamble_and_header.size() + sizeof(Introduction));
  // Reflecting the server's own proof must fail too.
  stranger.say(make_frame(encode(server.proof)));
  EXPECT_THAT(stranger.hear_all(), HasSubstr("wrong job token"));
  expect_service();
}

TEST_F(TcpServer, WithoutATokenServesThoseWithoutOneOnly) {
  const TcpStoreServer server(kLoopback, 0, "");
  open_store(server.url(), {.token = ""})->add("count", 1, kTimeout);
  EXPECT_THROW(open_store(server.url(), {.token = "any"}), NetworkError);
}

TEST_F(TcpServer, ClosesOnlyTheConnectionThatSpeaksGarbage) {
  RawPeer browser(port());
  browser.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(browser.hear_all(), "");

  RawPeer member(port());
  member.introduce("secret");
  member.say(make_frame(to_bytes("no request")));
  EXPECT_EQ(member.hear_all().size(), kGreetingBytes);
  expect_service();
}

TEST_F(TcpServer, ClosesAConnectionWhoseFrameIsTooLong) {
  RawPeer stranger(port());
  stranger.say(store_preamble());
  stranger.say(std::string("\x21\0\0\0", 4));  // 33: longer than a challenge
  EXPECT_EQ(stranger.hear_all(), to_text(store_preamble()));

  RawPeer member(port());
  member.introduce("secret");
  member.say("\xff\xff\xff\xff");
  member.hear_all();
  expect_service();
}

TEST_F(TcpServer, WaitsForNobodyWhoIsSlow) {
  RawPeer silent(port());
  RawPeer half_preamble(port());
  half_preamble.say("LKS");
  RawPeer half_challenge(port());
  half_challenge.say(store_preamble());
  half_challenge.say(std::string("\x20\0\0\0half", 8));
  RawPeer half_frame(port());
  half_frame.introduce("secret");
  half_frame.say(std::string("\xff\0\0\0half", 8));
  expect_service();

  half_challenge.say(std::string(28, 'x'));
  EXPECT_EQ(half_challenge.hear(kIntroductionBytes).size(), kIntroductionBytes);
}

TEST_F(TcpServer, WaitsForNobodyWhoTakesNoAnswers) {
  // Together they exceed the buffers of two sockets.
  const Bytes large(std::size_t{4} << 20);
  constexpr std::size_t kAnswers = 6;
  open()->set("large", large, kTimeout);
  RawPeer deaf(port());
  deaf.introduce("secret");
  for (std::size_t i = 0; i < kAnswers; ++i)
    deaf.say(make_frame(
        encode(Request{.kind = RequestKind::kGet, .keys = {"large"}})));
  expect_service();
  // It lost no key either.
  const std::size_t all =
      kGreetingBytes +
      kAnswers * make_frame(encode(Answer{.value = large})).size();
  EXPECT_EQ(deaf.hear(all).size(), all);
}

TEST_F(TcpServer, LetsNewcomersWaitWhileFileDescriptorsAreShort) {
  const auto member = open();
  // One more for the newcomer's end, but no descriptor for the server's.
  std::optional<ScarceDescriptors> limit(std::in_place, 1);
  RawPeer newcomer(port());
  newcomer.greet();
  for (int i = 0; i < 10; ++i) member->add("count", 1, kTimeout);
  limit.reset();
  newcomer.prove_to_have("secret");
  EXPECT_EQ(newcomer.hear(kGreetingBytes).size(), kGreetingBytes);
}

TEST_F(TcpServer, EndsAWaitingClientThatAsksAgain) {
  RawPeer client(port());
  client.introduce("secret");
  const Bytes get =
      make_frame(encode(Request{.kind = RequestKind::kGet, .keys = {"never"}}));
  client.say(get);
  client.say(get);
  client.hear_all();
  expect_service();
}

TEST_F(TcpServer, ClosesStrangersWhoSayNothingInTime) {
  const TcpStoreServer server(kLoopback, 0, "secret", {.introduction = 30ms});
  RawPeer silent(server.port());
  EXPECT_EQ(silent.hear_all(), "");
}

TEST_F(TcpServer, LetsAMemberBeSilentForAsLongAsItLikes) {
  const TcpStoreServer server(kLoopback, 0, "secret", {.introduction = 200ms});
  const auto member = open_store(server.url(), {.token = "secret"});
  EXPECT_THROW(member->get("never", Deadline(400ms)), Timeout);
}

TEST_F(TcpServer, HasRoomForOnlySoManyStrangers) {
  const TcpStoreServer server(kLoopback, 0, "secret", {.strangers = 2});
  RawPeer first(server.port());
  RawPeer second(server.port());
  const auto member = open_store(server.url(), {.token = "secret"});
  EXPECT_EQ(first.hear_all(), "");
  second.introduce("secret");
  EXPECT_EQ(second.hear(kGreetingBytes).size(), kGreetingBytes);
  member->add("count", 1, kTimeout);
}

TEST_F(TcpServer,
       EndsStrangersThatAreSilentBeforeThoseThatIntroduceThemselves) {
  const TcpStoreServer server(kLoopback, 0, "secret", {.strangers = 2});
  RawPeer slow(server.port());
  slow.greet();
  RawPeer silent(server.port());
  RawPeer another(server.port());
  EXPECT_EQ(silent.hear_all(), "");
  slow.prove_to_have("secret");
  EXPECT_EQ(slow.hear(kGreetingBytes).size(), kGreetingBytes);
}

TEST_F(TcpServer, EndsNoNewcomerForStrangersThatStopHalfWay) {
  const TcpStoreServer server(kLoopback, 0, "secret", {.strangers = 2});
  const auto member = open_store(server.url(), {.token = "secret"});
  RawPeer first(server.port());
  first.greet();
  first.hear(kIntroductionBytes);
  RawPeer second(server.port());
  second.greet();
  second.hear(kIntroductionBytes);
  RawPeer newcomer(server.port());
  // The server accepts after it has answered: by the second answer, it did.
  for (int i = 0; i < 2; ++i) member->add("count", 1, kTimeout);
  newcomer.introduce("secret");
  EXPECT_EQ(newcomer.hear(kGreetingBytes).size(), kGreetingBytes);
  EXPECT_EQ(first.hear_all(), "");
}

TEST_F(TcpServer, LeavesTheProcessMostOfItsDescriptors) {
  const ScarceDescriptors limit(2000);
  rlimit descriptors{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  RawPeer oldest(port());
  oldest.greet();
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (rlim_t i = 0; i < descriptors.rlim_cur / 4; ++i) {
    strangers.push_back(std::make_unique<RawPeer>(port()));
    strangers.back()->greet();
    strangers.back()->hear(kIntroductionBytes);
  }
  oldest.prove_to_have("secret");
  EXPECT_EQ(oldest.hear(kGreetingBytes).size(), 0);
}

// More ranks than the server has room for, among unauthenticated clients that
// keep connecting.
TEST_F(TcpServer, ServesEveryRankInACrowd) {
  const TcpStoreServer server(kLoopback, 0, "secret", {.strangers = 4});
  std::atomic<bool> done = false;
  std::thread crowd([&] {
    std::vector<std::unique_ptr<RawPeer>> strangers;
    while (!done) {
      strangers.push_back(std::make_unique<RawPeer>(server.port()));
      if (strangers.size() > 50) strangers.clear();
    }
  });
  std::vector<std::thread> ranks;
  for (int i = 0; i < 32; ++i)
    ranks.emplace_back([&] {
      open_store(server.url(), {.token = "secret"})->add("n", 1, kTimeout);
    });
  for (std::thread& rank : ranks) rank.join();
  done = true;
  crowd.join();
  EXPECT_EQ(
      open_store(server.url(), {.token = "secret"})->add("n", 0, kTimeout), 32);
}

TEST_F(TcpServer, TakesASilentStrangersDescriptorForANewcomer) {
  const auto member = open();
  RawPeer silent(port());
  // The server accepts after it has answered: by the second answer, it did.
  for (int i = 0; i < 2; ++i) member->add("count", 1, kTimeout);
  const ScarceDescriptors limit(1);
  RawPeer newcomer(port());
  newcomer.introduce("secret");
  EXPECT_EQ(newcomer.hear(kGreetingBytes).size(), kGreetingBytes);
  EXPECT_EQ(silent.hear_all(), "");
}

TEST_F(TcpServer, TellsAClientOfAnotherVersionWhichItSpeaksAndHangsUp) {
  const TcpStoreServer server(kLoopback, 0, "secret", {.introduction = 1h});
  RawPeer client(server.port());
  Bytes preamble = store_preamble();
  preamble.back() = std::byte{200};
  client.say(preamble);
  client.say(make_frame(to_bytes("what another version says")));
  EXPECT_THAT(client.hear_all(), HasSubstr(to_text(store_preamble())));
}

TEST_F(TcpServer, ServesAHundredClients) {
  constexpr int kClients = 100;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i)
    threads.emplace_back([&, i] {
      const auto store = open();
      store->set("rank " + std::to_string(i), to_bytes("here"), kTimeout);
      if (store->add("here", 1, kTimeout) == kClients)
        store->set("all", {}, kTimeout);
      store->get("all", kTimeout);
      const std::string other = std::to_string((i + 37) % kClients);
      EXPECT_EQ(to_text(store->get("rank " + other, kTimeout)), "here");
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TcpServer, NamesThePortThatIsInUse) {
  const std::string message = error_text<NetworkError>(
      [&] { open_store(server_->url(), {.token = "secret", .serve = true}); });
  EXPECT_THAT(message,
              HasSubstr("could not listen at [::]:" + std::to_string(port()) +
                        ": Address already in use"));
  EXPECT_THAT(message, HasSubstr("next:"));
}

TEST_F(TcpServer, RefusesAnAddressThatThisHostDoesNotHave) {
  // TEST-NET-1, RFC 5737: an unused address.
  EXPECT_THROW(TcpStoreServer("192.0.2.1", 0, ""), NetworkError);
  EXPECT_THROW(TcpStoreServer("no-such-host.invalid", 0, ""), NetworkError);
}

// Issue 43: the client waited as if no process served.
TEST_F(TcpServer, IsRefusedATokenThatIsTooLongAsItsClientsAre) {
  const std::string token(257, 't');
  const auto refused = HasSubstr("LOCKSTEP_TOKEN, has 257 bytes");
  EXPECT_THAT(error_text([&] { TcpStoreServer(kLoopback, 0, token); }),
              refused);
  for (const int taken : {int{port()}, int{find_free_port()}})
    EXPECT_THAT(error_text([&] {
                  open_store("tcp://127.0.0.1:" + std::to_string(taken),
                             {.token = token, .deadline = kTimeout});
                }),
                refused);
}

TEST_F(TcpServer, ServesOnASocketThatListensAlready) {
  FileDescriptor listener = listen_at(kLoopback, 0);
  const std::string url = "tcp://" + local_address(listener.get()).text();
  const TcpStoreServer server(std::move(listener), "secret");
  EXPECT_EQ(server.url(), url);
  open_store(url, {.token = "secret"})->add("count", 1, kTimeout);
}

// How often `text` was logged while `action` ran.
int count_logged(const std::string& text, auto action) {
  testing::internal::CaptureStderr();
  action();
  const std::string logged = testing::internal::GetCapturedStderr();
  int count = 0;
  for (auto at = logged.find(text); at != std::string::npos;
       at = logged.find(text, at + 1))
    ++count;
  return count;
}

TEST_F(TcpServer, FillsNoLogForAStrangerThatTriesAgain) {
  EXPECT_EQ(count_logged("wrong job token",
                         [&] {
                           for (int i = 0; i < 100; ++i) {
                             RawPeer liar(port());
                             liar.introduce("a guess");
                             liar.hear_all();
                           }
                         }),
            1);
}

TEST_F(TcpServer, WarnsOnceOfAMissingToken) {
  const std::string warning = "asks for no job token: ";
  EXPECT_EQ(count_logged(warning + "every process that reaches this address",
                         [] {
                           const TcpStoreServer server("0.0.0.0", 0, "");
                           for (int i = 0; i < 3; ++i)
                             open_store("tcp://127.0.0.1:" +
                                        std::to_string(server.port()));
                         }),
            1);
  EXPECT_EQ(count_logged(warning + "every user of this host",
                         [] { TcpStoreServer("localhost", 0, ""); }),
            1);
  EXPECT_EQ(
      count_logged(warning, [] { TcpStoreServer("0.0.0.0", 0, "secret"); }), 0);
}

}  // namespace
}  // namespace lockstep
