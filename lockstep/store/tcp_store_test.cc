// What tcp:// alone has: connections, tokens, strangers, deaths.
#include "lockstep/store/tcp_store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/net/frame.h"
#include "lockstep/net/socket.h"
#include "lockstep/net/socket_address.h"
#include "lockstep/net/wait.h"
#include "lockstep/store/store_protocol.h"
#include "lockstep/store/store_testing.h"
#include "lockstep/store/tcp_connection.h"
#include "lockstep/store/tcp_store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 5min;
constexpr const char* kHost = "127.0.0.1";
// What a server says to a client that is welcome: its preamble, its verdict.
constexpr std::size_t kGreetingBytes = kPreambleBytes + kFrameHeaderBytes + 1;

template <class Exception>
std::string message_of(auto call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A peer that says what it likes: either end of a connection.
class Peer {
 public:
  explicit Peer(FileDescriptor socket) : socket_(std::move(socket)) {}
  explicit Peer(int port) : Peer(connect_to(kHost, port, kPatience)) {}

  void say(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const Transfer sent = send_some(socket_.get(), bytes);
      if (sent.ended) return;
      bytes = bytes.subspan(sent.bytes);
      if (!bytes.empty()) wait_for(socket_.get(), POLLOUT, kPatience);
    }
  }
  void say(std::string_view text) { say(to_bytes(text)); }

  // As a client of the right kind would.
  void introduce(std::string_view token) {
    say(store_preamble());
    say(make_frame(to_bytes(token)));
  }

  // At least `count` bytes, fewer only when the other side hangs up.
  Bytes hear(std::size_t count) {
    Bytes heard;
    while (heard.size() < count) {
      wait_for(socket_.get(), POLLIN, kPatience);
      std::array<std::byte, 65536> room;
      const Transfer read = receive_some(socket_.get(), room);
      if (read.ended) break;
      heard.insert(heard.end(), room.begin(), room.begin() + read.bytes);
    }
    return heard;
  }

  // All that comes before the other side hangs up.
  std::string hear_all() { return to_text(hear(SIZE_MAX)); }

 private:
  FileDescriptor socket_;
};

// Listens at a port of the kernel's choice and answers one client as told.
class FakeServer {
 public:
  explicit FakeServer(std::string answer)
      : listener_(listen_at(kHost, 0)),
        thread_([this, answer = std::move(answer)] {
          wait_for(listener_.get(), POLLIN, kPatience);
          Peer client(accept_from(listener_.get()));
          client.say(answer);
          client.hear_all();
        }) {}
  ~FakeServer() { thread_.join(); }

  std::string url() const {
    return "tcp://" + local_address(listener_.get()).text();
  }

 private:
  FileDescriptor listener_;
  std::thread thread_;
};

class TcpStore : public testing::Test {
 protected:
  std::shared_ptr<Store> open(const std::string& token = "secret") {
    return open_store(server_->url(), {.token = token});
  }

  // The server still does its work.
  void expect_service() {
    const auto store = open();
    store->set("service", to_bytes("yes"), kPatience);
    EXPECT_EQ(to_text(store->get("service", kPatience)), "yes");
  }

  int port() const { return server_->port(); }

  std::unique_ptr<TcpStoreServer> server_ =
      std::make_unique<TcpStoreServer>(kHost, 0, "secret");
};

TEST_F(TcpStore, TurnsAwayWhoeverHasAnotherToken) {
  for (const std::string token : {"", "secre", "secret ", "SECRET"}) {
    const std::string message = message_of<NetworkError>([&] { open(token); });
    EXPECT_TRUE(
        contains(message, server_->url() + " was turned away: wrong job token"))
        << message;
    EXPECT_TRUE(contains(message, "LOCKSTEP_TOKEN")) << message;
  }
  expect_service();
}

TEST_F(TcpStore, LetsEverybodyInWithoutAToken) {
  const TcpStoreServer server(kHost, 0, "");
  for (const std::string token : {"", "any"})
    open_store(server.url(), {.token = token})->add("count", 1, kPatience);
}

TEST_F(TcpStore, ClosesOnlyTheConnectionThatSpeaksGarbage) {
  Peer browser(port());
  browser.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(browser.hear_all(), "");

  Peer member(port());
  member.introduce("secret");
  member.say(make_frame(to_bytes("no request")));
  EXPECT_EQ(member.hear_all(), to_text(store_preamble()) +
                                   to_text(make_frame(encode_verdict(""))));
  expect_service();
}

TEST_F(TcpStore, ClosesAConnectionWhoseFrameIsTooLong) {
  Peer stranger(port());
  stranger.say(store_preamble());
  stranger.say(std::string("\x01\x01\0\0", 4));  // 257: longer than a token
  EXPECT_EQ(stranger.hear_all(), to_text(store_preamble()));

  Peer member(port());
  member.introduce("secret");
  member.say("\xff\xff\xff\xff");
  member.hear_all();
  expect_service();
}

TEST_F(TcpStore, WaitsForNobodyWhoIsSlow) {
  Peer silent(port());
  Peer half_preamble(port());
  half_preamble.say("LKS");
  Peer half_token(port());
  half_token.say(store_preamble());
  half_token.say(std::string("\x06\0\0\0sec", 7));
  Peer half_frame(port());
  half_frame.introduce("secret");
  half_frame.say(std::string("\xff\0\0\0half", 8));
  expect_service();

  half_token.say("ret");
  EXPECT_EQ(half_token.hear(kGreetingBytes).size(), kGreetingBytes);
}

TEST_F(TcpStore, WaitsForNobodyWhoTakesNoAnswers) {
  // Together more than the buffers of two sockets hold.
  const Bytes large(std::size_t{4} << 20);
  constexpr std::size_t kAnswers = 6;
  open()->set("large", large, kPatience);
  Peer deaf(port());
  deaf.introduce("secret");
  for (std::size_t i = 0; i < kAnswers; ++i)
    deaf.say(make_frame(
        encode(Request{.kind = RequestKind::kGet, .keys = {"large"}})));
  expect_service();
  // Nothing was lost for it either.
  const std::size_t all =
      kGreetingBytes +
      kAnswers * make_frame(encode(Answer{.value = large})).size();
  EXPECT_EQ(deaf.hear(all).size(), all);
}

TEST_F(TcpStore, EndsAWaitingClientThatAsksAgain) {
  Peer client(port());
  client.introduce("secret");
  const Bytes get =
      make_frame(encode(Request{.kind = RequestKind::kGet, .keys = {"never"}}));
  client.say(get);
  client.say(get);
  client.hear_all();
  expect_service();
}

TEST_F(TcpStore, ClosesStrangersWhoSayNothingInTime) {
  const TcpStoreServer server(kHost, 0, "secret", {.introduction = 30ms});
  Peer silent(server.port());
  EXPECT_EQ(silent.hear_all(), "");
}

TEST_F(TcpStore, HasRoomForOnlySoManyStrangers) {
  const TcpStoreServer server(kHost, 0, "secret", {.strangers = 2});
  Peer first(server.port());
  Peer second(server.port());
  const auto member = open_store(server.url(), {.token = "secret"});
  EXPECT_EQ(first.hear_all(), "");
  second.introduce("secret");
  EXPECT_EQ(second.hear(kGreetingBytes).size(), kGreetingBytes);
  member->add("count", 1, kPatience);
}

TEST_F(TcpStore, TellsAClientOfAnotherVersionWhichItSpeaks) {
  Peer client(port());
  Bytes preamble = store_preamble();
  preamble.back() = std::byte{200};
  client.say(preamble);
  client.say(make_frame(to_bytes("secret")));
  EXPECT_TRUE(contains(client.hear_all(), to_text(store_preamble())));
  expect_service();
}

TEST_F(TcpStore, SaysWhichVersionAServerSpeaks) {
  Bytes preamble = store_preamble();
  preamble.back() = std::byte{200};
  const FakeServer server(to_text(preamble));
  const std::string message =
      message_of<NetworkError>([&] { open_store(server.url()); });
  EXPECT_TRUE(contains(message, "speaks version 200")) << message;
  EXPECT_TRUE(contains(message, "this process version 1")) << message;
}

TEST_F(TcpStore, SaysThatSomethingElseAnswers) {
  const FakeServer server("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n");
  const std::string message =
      message_of<NetworkError>([&] { open_store(server.url()); });
  EXPECT_TRUE(contains(message, "no Lockstep store")) << message;
}

TEST_F(TcpStore, TimesOutOnAServerThatSaysNothing) {
  const FakeServer server("");
  const std::string message = message_of<Timeout>(
      [&] { open_store(server.url(), {.deadline = Deadline(30ms)}); });
  EXPECT_TRUE(contains(message, "open_store at " + server.url())) << message;
}

TEST_F(TcpStore, ServesAHundredClients) {
  constexpr int kClients = 100;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i)
    threads.emplace_back([&, i] {
      const auto store = open();
      store->set("rank " + std::to_string(i), to_bytes("here"), kPatience);
      if (store->add("here", 1, kPatience) == kClients)
        store->set("all", {}, kPatience);
      store->get("all", kPatience);
      const std::string other = std::to_string((i + 37) % kClients);
      EXPECT_EQ(to_text(store->get("rank " + other, kPatience)), "here");
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TcpStore, NamesThePortThatIsInUse) {
  const std::string message = message_of<NetworkError>(
      [&] { open_store(server_->url(), {.token = "secret", .serve = true}); });
  EXPECT_TRUE(contains(
      message, "could not listen at 127.0.0.1:" + std::to_string(port()) +
                   ": Address already in use"))
      << message;
  EXPECT_TRUE(contains(message, "next:")) << message;
}

TEST_F(TcpStore, RefusesAnAddressThatThisHostDoesNotHave) {
  // TEST-NET-1, RFC 5737: nobody's.
  EXPECT_THROW(TcpStoreServer("192.0.2.1", 0, ""), NetworkError);
  EXPECT_THROW(TcpStoreServer("no-such-host.invalid", 0, ""), NetworkError);
  EXPECT_THROW(TcpStoreServer(kHost, 0, std::string(257, 't')),
               InvalidArgument);
}

TEST_F(TcpStore, WaitsForAServerThatComesLater) {
  const int later = port();
  server_.reset();
  std::shared_ptr<Store> client;
  std::thread early([&] {
    client = open_store("tcp://127.0.0.1:" + std::to_string(later),
                        {.token = "secret", .deadline = kPatience});
  });
  server_ = std::make_unique<TcpStoreServer>(kHost, later, "secret");
  early.join();
  EXPECT_EQ(client->add("count", 1, kPatience), 1);
}

TEST_F(TcpStore, NamesTheServerThatNeverCame) {
  const std::string url = server_->url();
  server_.reset();
  const std::string message = message_of<Timeout>(
      [&] { open_store(url, {.deadline = Deadline(50ms)}); });
  EXPECT_TRUE(contains(message, url.substr(6))) << message;
  EXPECT_TRUE(contains(message, "Connection refused")) << message;
  EXPECT_TRUE(contains(message, "MASTER_PORT")) << message;
}

TEST_F(TcpStore, ServesAndUsesItselfInOneObject) {
  const auto store =
      open_store("tcp://127.0.0.1:0", {.token = "secret", .serve = true});
  EXPECT_EQ(store->add("count", 1, kPatience), 1);
}

TEST_F(TcpStore, ServesOnASocketThatListensAlready) {
  FileDescriptor listener = listen_at(kHost, 0);
  const std::string url = "tcp://" + local_address(listener.get()).text();
  const TcpStoreServer server(std::move(listener), "secret");
  EXPECT_EQ(server.url(), url);
  open_store(url, {.token = "secret"})->add("count", 1, kPatience);
}

TEST_F(TcpStore, EndsEveryCallWhenTheServerDies) {
  const auto store = open();
  const std::string url = server_->url();
  std::thread waiting([&] {
    const std::string message =
        message_of<NetworkError>([&] { store->get("never", kPatience); });
    EXPECT_TRUE(contains(message, "get(\"never\") at " + url)) << message;
  });
  server_.reset();
  waiting.join();
  EXPECT_THROW(store->set("key", {}, kPatience), NetworkError);
  EXPECT_THROW(store->add("key", 1, kPatience), NetworkError);
  EXPECT_THROW(store->set_last_will("key", {}, kPatience), NetworkError);
  EXPECT_THROW(store->set_last_will("key", {}, kPatience), NetworkError);
}

TEST_F(TcpStore, ExecutesTheLastWillOfAProcessThatWasKilled) {
  const auto store = open();
  StoreChild child({"leave-will", server_->url(), "secret", "rank 1"});
  store->get("rank 1/ready", kPatience);
  EXPECT_THROW(store->get("rank 1", Deadline(20ms)), Timeout);
  child.kill();
  EXPECT_EQ(to_text(store->get("rank 1", kPatience)), "dead");
}

TEST_F(TcpStore, KeepsALastWillWhenOtherCallsGiveUp) {
  const auto store = open();
  store->set_last_will("will", to_bytes("gone"), kPatience);
  for (int i = 0; i < 3; ++i)
    EXPECT_THROW(store->get("never", Deadline(1ms)), Timeout);
  EXPECT_THROW(open()->get("will", Deadline(50ms)), Timeout);
}

TEST_F(TcpStore, LosesNoAddOfManyProcesses) {
  std::vector<std::unique_ptr<StoreChild>> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(std::make_unique<StoreChild>(std::vector<std::string>{
        "add", server_->url(), "secret", "count", "100"}));
  for (const auto& child : children) EXPECT_EQ(child->wait(), 0);
  EXPECT_EQ(open()->add("count", 0, kPatience), 400);
}

TEST(TcpConnection, DropsTheAnswerOfACallThatGaveUp) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  Peer server{FileDescriptor(ends[1])};
  server.say(store_preamble());
  server.say(make_frame(encode_verdict("")));
  const StoreCall call("get", "key", "test");
  TcpConnection client(FileDescriptor(ends[0]), "", call, kPatience, nullptr);
  Request request{.kind = RequestKind::kGet, .keys = {"key"}};
  EXPECT_THROW(client.call(call, request, Deadline(1ms), nullptr), Timeout);
  server.say(make_frame(encode(Answer{.id = 1, .value = to_bytes("late")})));
  server.say(make_frame(encode(Answer{.id = 2, .value = to_bytes("right")})));
  EXPECT_EQ(to_text(client.call(call, request, kPatience, nullptr).value),
            "right");
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

TEST(TcpStoreServer, WarnsOnceOfAMissingTokenOffLoopback) {
  const std::string warning = "asks for no job token";
  EXPECT_EQ(count_logged(warning,
                         [] {
                           const TcpStoreServer server("0.0.0.0", 0, "");
                           for (int i = 0; i < 3; ++i)
                             open_store("tcp://127.0.0.1:" +
                                        std::to_string(server.port()));
                         }),
            1);
  EXPECT_EQ(
      count_logged(warning, [] { TcpStoreServer("0.0.0.0", 0, "secret"); }), 0);
  EXPECT_EQ(count_logged(warning, [] { TcpStoreServer("localhost", 0, ""); }),
            0);
}

}  // namespace
}  // namespace lockstep
