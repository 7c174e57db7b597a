// A store that may be at one of several ports, which other programs also use.
#include "src/store/server_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/free_port.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"
#include "src/net/wake_up.h"
#include "src/store/tcp_store.h"
#include "src/store/tcp_store_server.h"
#include "src/store/testing/raw_peer.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kLocalHost = "127.0.0.1";

DerivedEndpoint at(const std::string& job, const std::vector<int>& ports) {
  return {{kLocalHost, ports.front()}, {ports.begin() + 1, ports.end()}, job};
}

std::shared_ptr<Store> find(const std::string& job,
                            const std::vector<int>& ports,
                            Deadline deadline = kTimeout) {
  return open_tcp_store(at(job, ports), {.deadline = deadline});
}

std::shared_ptr<Store> serve(const std::string& job,
                             const std::vector<int>& ports) {
  return open_tcp_store(at(job, ports), {.serve = true, .bind = kLocalHost});
}

int port_of(const FileDescriptor& listener) {
  return local_address(listener.get()).port();
}

TEST(ServerSearch, PassesAListenerThatSaysNothing) {
  const FileDescriptor silent = listen_at(kLocalHost, 0);
  const TcpStoreServer server(kLocalHost, 0, "", {.job = "ours"});
  const auto store =
      find("ours", {port_of(silent), find_free_port(), server.port()});
  store->set("key", to_bytes("value"), kTimeout);
  // The client opens further connections at the port that it has found.
  std::thread waits([&] { store->get("later", kTimeout); });
  store->set("later", {}, kTimeout);
  waits.join();
}

TEST(ServerSearch, PassesTheStoreOfAnotherJob) {
  for (const char* token : {"", "secret"}) {
    const TcpStoreServer other(kLocalHost, 0, token, {.job = "another"});
    const TcpStoreServer server(kLocalHost, 0, token, {.job = "ours"});
    const auto store = open_tcp_store(at("ours", {other.port(), server.port()}),
                                      {.token = token, .deadline = kTimeout});
    store->set("key", to_bytes("value"), kTimeout);
    const auto others =
        open_tcp_store(at("another", {server.port(), other.port()}),
                       {.token = token, .deadline = kTimeout});
    EXPECT_FALSE(others->erase("key", kTimeout));
  }
}

TEST(ServerSearch, GoesRoundUntilTheServerStarts) {
  const FileDescriptor taken = listen_at(kLocalHost, 0);
  const std::vector<int> ports{port_of(taken), find_free_port()};
  std::shared_ptr<Store> found;
  std::thread client([&] { found = find("ours", ports); });
  // The client has begun: the listener has its connection.
  wait_for(taken.get(), POLLIN, kTimeout);
  const auto served = serve("ours", ports);
  client.join();
  found->set("key", {}, kTimeout);
  EXPECT_TRUE(served->erase("key", kTimeout));
}

TEST(ServerSearch, KeepsTwoJobsApartThatStartAtOnce) {
  const std::vector<int> ports{find_free_port(), find_free_port()};
  std::vector<std::thread> ranks;
  for (const std::string job : {"one", "another"}) {
    for (const bool is_server : {false, true})
      ranks.emplace_back([=] {
        const auto store = is_server ? serve(job, ports) : find(job, ports);
        const std::string own = is_server ? "server" : "client";
        const std::string other = is_server ? "client" : "server";
        store->set(own, to_bytes(job), kTimeout);
        EXPECT_EQ(to_text(store->get(other, kTimeout)), job);
        // The store ends with its server.
        store->set(own + " has read", {}, kTimeout);
        if (is_server) store->get("client has read", kTimeout);
      });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Two programs of one job, started at once, have the same ports.
TEST(ServerSearch, ServesNoSecondStoreOfTheSameJob) {
  const std::vector<int> ports{find_free_port(), find_free_port()};
  for (const char* token : {"", "secret"}) {
    const StoreOptions options{
        .token = token, .serve = true, .bind = kLocalHost};
    const auto first = open_tcp_store(at("o\nurs", ports), options);
    EXPECT_THAT(
        error_text([&] { open_tcp_store(at("o\nurs", ports), options); }),
        AllOf(
            HasSubstr("could not serve the store of \"o?urs\": rank 0 of this "
                      "job serves at port " +
                      std::to_string(ports[0]) + " of this host already\n"),
            HasSubstr("\n  next:    ")));
    // Another token is another job.
    open_tcp_store(at("o\nurs", ports),
                   {.token = "another", .serve = true, .bind = kLocalHost});
  }
}

// A listener that drops the packets of further connections, like a firewall.
class FullListener {
 public:
  FullListener(const char* host, int port)
      : address_(resolve(host, port).front()),
        socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_EQ(::bind(socket_.get(), address_.get(), address_.length), 0);
    // The kernel queues one connection more.
    EXPECT_EQ(::listen(socket_.get(), 0), 0);
    queued_ = connect_once(address_, kTimeout);
  }

 private:
  const SocketAddress address_;
  const FileDescriptor socket_;
  FileDescriptor queued_;
};

TEST(ServerSearch, PassesAnAddressThatSwallowsPackets) {
  const TcpStoreServer server(kLocalHost, 0, "", {.job = "ours"});
  const FullListener full("127.0.0.2", server.port());
  const FileDescriptor silent = listen_at("127.0.0.3", server.port());
  ServerPlaces places{"node-a", {server.port()}};
  places.resolver = [](const std::string&, int port) {
    std::vector<SocketAddress> all;
    for (const char* each : {"127.0.0.2", "127.0.0.3", kLocalHost})
      all.push_back(resolve(each, port).front());
    return all;
  };
  const FoundServer found = find_server(places, {.job = "ours"}, kTimeout);
  EXPECT_EQ(found.endpoint.host, kLocalHost);
  EXPECT_EQ(found.endpoint.port, server.port());
  EXPECT_THAT(
      error_text<Timeout>([&] { find_server(places, {.job = "o\nurs"}, 4s); }),
      AllOf(HasSubstr("found no store of \"o?urs\" on node-a"),
            HasSubstr(": could not connect to 127.0.0.2:" +
                      std::to_string(server.port()) +
                      ": Connection timed out; a program that does not answer; "
                      "open_store at tcp://node-a:")));
}

TEST(ServerSearch, SaysWhatItFoundAtEachPort) {
  const FileDescriptor silent = listen_at(kLocalHost, 0);
  const TcpStoreServer other(kLocalHost, 0, "", {.job = "another"});
  const FileDescriptor listener = listen_at(kLocalHost, 0);
  const int free = find_free_port();
  // A program of another kind, for as long as clients come.
  WakeUp over;
  std::thread stranger([&] {
    std::array<pollfd, 2> either{pollfd{listener.get(), POLLIN, 0},
                                 pollfd{over.descriptor(), POLLIN, 0}};
    while (::poll(either.data(), 2, -1) > 0 && either[1].revents == 0)
      RawPeer(accept_from(listener.get())).say("SSH-2.0-OpenSSH_9.2p1\r\n");
  });
  const std::vector<int> ports{port_of(silent), other.port(), port_of(listener),
                               free};
  const std::string text =
      error_text<Timeout>([&] { find("ours", ports, 4s); });
  over.signal();
  stranger.join();
  EXPECT_THAT(text,
              HasSubstr("found no store of \"ours\" on 127.0.0.1 within"));
  const auto says = [&](int port, const std::string& what) {
    EXPECT_THAT(text, HasSubstr("found:   at port " + std::to_string(port) +
                                ": " + what));
  };
  says(ports[0], "a program that does not answer\n");
  says(ports[1], "open_store at tcp://127.0.0.1:" + std::to_string(ports[1]) +
                     " failed: the server belongs to another job, or does not");
  says(ports[2], "open_store at tcp://127.0.0.1:" + std::to_string(ports[2]) +
                     " failed: the server there is not a Lockstep store\n");
  says(ports[3], "no program\n");
}

TEST(ServerSearch, ServesNowhereWhereAllPortsAreTaken) {
  const FileDescriptor one = listen_at(kLocalHost, 0);
  const FileDescriptor other = listen_at(kLocalHost, 0);
  const std::vector<int> ports{port_of(one), port_of(other)};
  EXPECT_THAT(
      error_text<NetworkError>([&] { serve("ours", ports); }),
      HasSubstr("could not serve the store of \"ours\": each of the ports " +
                std::to_string(ports[0]) + ", " + std::to_string(ports[1]) +
                " is taken on this host"));
}

}  // namespace
}  // namespace lockstep
