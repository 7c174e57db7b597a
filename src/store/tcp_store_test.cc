// A tcp:// store whose server is late, dead, of another version, or not a
// store.
#include "src/store/tcp_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <set>
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
#include "src/net/wait.h"
#include "src/store/store_protocol.h"
#include "src/store/tcp_connection.h"
#include "src/store/tcp_store_server.h"
#include "src/store/testing/raw_peer.h"
#include "src/store/testing/store_testing.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr const char* kHost = "127.0.0.1";

// Listens at a port that the kernel chooses and answers one client as the test
// says.
class FakeServer {
 public:
  explicit FakeServer(std::string answer)
      : listener_(listen_at(kHost, 0)),
        thread_([this, answer = std::move(answer)] {
          wait_for(listener_.get(), POLLIN, kTimeout);
          RawPeer client(accept_from(listener_.get()));
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

  std::unique_ptr<TcpStoreServer> server_ =
      std::make_unique<TcpStoreServer>(kHost, 0, "secret");
};

TEST_F(TcpStore, SaysWhichVersionAServerSpeaks) {
  Bytes preamble = store_preamble();
  preamble.back() = std::byte{200};
  const FakeServer server(to_text(preamble));
  const std::string message =
      error_text<NetworkError>([&] { open_store(server.url()); });
  EXPECT_THAT(message, HasSubstr("speaks version 200"));
  EXPECT_THAT(message, HasSubstr("this process version " +
                                 std::to_string(kStoreProtocolVersion)));
}

TEST_F(TcpStore, SaysThatSomethingElseAnswers) {
  const FakeServer server("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n");
  const std::string message =
      error_text<NetworkError>([&] { open_store(server.url()); });
  EXPECT_THAT(message, HasSubstr("not a Lockstep store"));
}

TEST_F(TcpStore, TellsAStrangerInTheServersPlaceNothingAboutItsToken) {
  const FileDescriptor listener = listen_at(kHost, 0);
  const std::string url = "tcp://" + local_address(listener.get()).text();
  std::string heard;
  std::thread stranger([&] {
    wait_for(listener.get(), POLLIN, kTimeout);
    RawPeer client(accept_from(listener.get()));
    client.introduce_as_server("a guess");
    heard = client.hear_all();
  });
  const std::string message =
      error_text<NetworkError>([&] { open_store(url, {.token = "secret"}); });
  stranger.join();
  EXPECT_EQ(heard, "");
  EXPECT_THAT(message, HasSubstr("does not have this process's job token"));
  EXPECT_THAT(message, HasSubstr("LOCKSTEP_TOKEN"));
}

TEST_F(TcpStore, TakesNothingLongFromAServerThatHasProvedNothing) {
  // The header of a frame that would be valid later; its body never arrives.
  const FakeServer server(to_text(store_preamble()) +
                          std::string("\0\1\0\0", 4));
  EXPECT_THAT(error_text<NetworkError>(
                  [&] { open_store(server.url(), {.token = "secret"}); }),
              HasSubstr("at most 64 are allowed"));
}

TEST_F(TcpStore, TriesAgainWhenItIsDroppedBeforeTheVerdict) {
  FileDescriptor listener = listen_at(kHost, 0);
  const std::string url = "tcp://" + local_address(listener.get()).text();
  std::shared_ptr<Store> store;
  std::thread client([&] { store = open_store(url, {.token = "secret"}); });
  for (int dropped = 0; dropped < 3; ++dropped) {
    wait_for(listener.get(), POLLIN, kTimeout);
    RawPeer peer(accept_from(listener.get()));
    if (dropped == 2) peer.introduce_as_server("secret");
  }
  const TcpStoreServer server(std::move(listener), "secret");
  client.join();
  EXPECT_EQ(store->add("count", 1, kTimeout), 1);
}

TEST_F(TcpStore, GivesUpOnAServerThatAlwaysDropsIt) {
  const FileDescriptor listener = listen_at(kHost, 0);
  const std::string url = "tcp://" + local_address(listener.get()).text();
  Cancellation done;
  std::thread dropper([&] {
    while (wait_for(listener.get(), POLLIN, kTimeout, &done) ==
           WaitResult::kReady)
      accept_from(listener.get());
  });
  const std::string message = error_text<Error>(
      [&] { open_store(url, {.deadline = Deadline(100ms)}); });
  done.cancel();
  dropper.join();
  EXPECT_THAT(message, HasSubstr("open_store at " + url));
}

TEST_F(TcpStore, TimesOutOnAServerThatSaysNothing) {
  const FakeServer server("");
  const std::string message = error_text<Timeout>(
      [&] { open_store(server.url(), {.deadline = Deadline(30ms)}); });
  EXPECT_THAT(message, HasSubstr("open_store at " + server.url()));
}

TEST_F(TcpStore, WaitsForAServerThatComesLater) {
  server_.reset();
  const int later = find_free_port();
  std::shared_ptr<Store> client;
  std::thread early([&] {
    client = open_store("tcp://127.0.0.1:" + std::to_string(later),
                        {.token = "secret", .deadline = kTimeout});
  });
  server_ = std::make_unique<TcpStoreServer>(kHost, later, "secret");
  early.join();
  EXPECT_EQ(client->add("count", 1, kTimeout), 1);
}

TEST_F(TcpStore, NamesTheServerThatNeverCame) {
  // Not the port of a server that has ended: another program may have it now.
  const std::string url = "tcp://127.0.0.1:" + std::to_string(find_free_port());
  const std::string message = error_text<Timeout>(
      [&] { open_store(url, {.deadline = Deadline(50ms)}); });
  EXPECT_THAT(message, HasSubstr(url.substr(6)));
  EXPECT_THAT(message, HasSubstr("Connection refused"));
  EXPECT_THAT(message, HasSubstr("MASTER_PORT"));
}

TEST_F(TcpStore, ServesAndUsesItselfInOneObject) {
  const auto store =
      open_store("tcp://127.0.0.1:0", {.token = "secret", .serve = true});
  EXPECT_EQ(store->add("count", 1, kTimeout), 1);
}

TEST_F(TcpStore, ServesAtAllAddressesWhateverTheUrlNames) {
  const std::string port = ":" + std::to_string(find_free_port());
  // TEST-NET-1, RFC 5737: not an address of this host, as behind NAT.
  const auto store =
      open_store("tcp://192.0.2.1" + port, {.token = "secret", .serve = true});
  EXPECT_EQ(store->add("count", 1, kTimeout), 1);
  for (const char* host : {"127.0.0.1", "127.0.1.1"})
    open_store("tcp://" + std::string(host) + port, {.token = "secret"})
        ->add("count", 1, kTimeout);
  if (has_one_of(resolve("::1", 0)))
    open_store("tcp://[::1]" + port, {.token = "secret"})
        ->add("count", 1, kTimeout);
  EXPECT_GE(store->add("count", 0, kTimeout), 3);
}

TEST_F(TcpStore, ServesAtOneAddressIfAskedTo) {
  const std::string port = ":" + std::to_string(find_free_port());
  const auto store =
      open_store("tcp://127.0.0.1" + port,
                 {.token = "secret", .serve = true, .bind = "127.0.1.1"});
  EXPECT_EQ(store->add("count", 1, kTimeout), 1);
  EXPECT_THROW(open_store("tcp://127.0.0.1" + port,
                          {.token = "secret", .deadline = Deadline(50ms)}),
               Timeout);
}

TEST_F(TcpStore, WarnsWhenItServesForAnAddressThatIsNotThisHosts) {
  testing::internal::CaptureStderr();
  open_store("tcp://192.0.2.1:0", {.token = "secret", .serve = true});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("192.0.2.1:0, which is not an address of this host"));
  testing::internal::CaptureStderr();
  open_store("tcp://127.0.0.1:0", {.token = "secret", .serve = true});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(TcpStore, EndsEveryCallWhenTheServerDies) {
  const auto store = open();
  const std::string url = server_->url();
  std::thread waiting([&] {
    const std::string message =
        error_text<NetworkError>([&] { store->get("never", kTimeout); });
    EXPECT_THAT(message, HasSubstr("get(\"never\") at " + url));
  });
  server_.reset();
  waiting.join();
  EXPECT_THROW(store->set("key", {}, kTimeout), NetworkError);
  EXPECT_THROW(store->add("key", 1, kTimeout), NetworkError);
  EXPECT_THROW(store->set_last_will({"key"}, {}, kTimeout), NetworkError);
  EXPECT_THROW(store->set_last_will({"key"}, {}, kTimeout), NetworkError);
}

TEST_F(TcpStore, KeepsApartFromAServerThatTookTheDeadOnesPlace) {
  const auto store = open();
  store->set_last_will({"will"}, {}, kTimeout);
  const int same = server_->port();
  server_.reset();
  server_ = std::make_unique<TcpStoreServer>(kHost, same, "secret");
  // Each connection to the dead server fails once, and the client opens no new
  // ones.
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(store->set("key", {}, kTimeout), NetworkError);
    EXPECT_THROW(store->set_last_will({"will"}, {}, kTimeout), NetworkError);
  }
  EXPECT_THROW(open()->get("key", Deadline(20ms)), Timeout);
}

TEST_F(TcpStore, ExecutesTheLastWillOfAProcessThatWasKilled) {
  const auto store = open();
  StoreChild child({"leave-will", server_->url(), "secret", "rank 1"});
  store->get("rank 1/ready", kTimeout);
  EXPECT_THROW(store->get("rank 1", Deadline(20ms)), Timeout);
  child.kill();
  EXPECT_EQ(to_text(store->get("rank 1", kTimeout)), "dead");
}

// This process's sockets that are connected to `port`.
std::set<int> connections_to(int port) {
  std::set<int> found;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    SocketAddress peer;
    peer.length = sizeof(peer.storage);
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer.storage),
                      &peer.length) == 0 &&
        peer.port() == port)
      found.insert(descriptor);
  }
  return found;
}

TEST_F(TcpStore, TakesANewLastWillAfterTheConnectionOfTheOldOneBroke) {
  const auto watcher = open();
  auto client = open();
  const std::set<int> others = connections_to(server_->port());
  client->set_last_will({"first"}, {}, kTimeout);
  std::set<int> with_will = connections_to(server_->port());
  for (const int other : others) with_will.erase(other);
  ASSERT_EQ(with_will.size(), 1U);
  ::shutdown(*with_will.begin(), SHUT_RDWR);
  watcher->get("first", kTimeout);
  client->set_last_will({"second"}, {}, kTimeout);
  client.reset();
  watcher->get("second", kTimeout);
}

TEST_F(TcpStore, KeepsALastWillWhenOtherCallsGiveUp) {
  const auto store = open();
  store->set_last_will({"will"}, to_bytes("gone"), kTimeout);
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
  EXPECT_EQ(open()->add("count", 0, kTimeout), 400);
}

TEST(TcpConnection, DropsTheAnswerOfACallThatGaveUp) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  RawPeer server{FileDescriptor(ends[1])};
  std::thread introduction([&] {
    server.introduce_as_server("");
    server.say(make_frame(encode(Verdict{true, "server"})));
  });
  const StorePlace place{"test"};
  const StoreCall call("get", "key", place);
  TcpConnection client(FileDescriptor(ends[0]), {}, call, kTimeout, nullptr);
  introduction.join();
  Request request{.kind = RequestKind::kGet, .keys = {"key"}};
  EXPECT_THROW(client.call(call, request, Deadline(1ms), nullptr), Timeout);
  server.say(make_frame(encode(Answer{.id = 1, .value = to_bytes("late")})));
  server.say(make_frame(encode(Answer{.id = 2, .value = to_bytes("right")})));
  EXPECT_EQ(to_text(client.call(call, request, kTimeout, nullptr).value),
            "right");
}

}  // namespace
}  // namespace lockstep
