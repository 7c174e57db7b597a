// Tests a connection that times out while others are busy, on Gloo's own
// classes.
#include "src/comm/gloo/plugin/gloo_access.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <future>
#include <iostream>
#include <latch>
#include <thread>

#include "src/base/testing/test_timeout.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"

namespace lockstep {
namespace {

namespace tcp = gloo::transport::tcp;
using namespace std::chrono_literals;

// Two sockets that are connected.
struct Connection {
  Connection() {
    const FileDescriptor listener = listen_at("127.0.0.1", 0);
    near = connect_once("127.0.0.1", local_address(listener.get()).port(),
                        Deadline(kTimeout));
    pollfd item{listener.get(), POLLIN, 0};
    ::poll(&item, 1, Deadline(kTimeout).poll_milliseconds());
    far = accept_from(listener.get());
  }
  FileDescriptor near;
  FileDescriptor far;
};

// Bytes sent on `near` stay unacknowledged until the kernel gives up: the peer
// does not read, and its buffers are full.
void time_out(const Connection& connection) {
  const int socket = connection.near.get();
  const int milliseconds = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds,
               sizeof milliseconds);
  const std::array<char, 4096> something{};
  while (::send(socket, something.data(), something.size(),
                MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
    continue;
  ASSERT_EQ(errno, EAGAIN);
  pollfd item{socket, 0, 0};
  ASSERT_EQ(::poll(&item, 1, Deadline(kTimeout).poll_milliseconds()), 1);
  ASSERT_NE(item.revents & POLLERR, 0);
}

// Keeps Gloo's thread busy from the request until the test lets it continue.
class Pause : public tcp::Handler {
 public:
  explicit Pause(tcp::Device& device) : device_(device) {
    device.registerDescriptor(event_.get(), EPOLLIN, this);
  }
  ~Pause() override { device_.unregisterDescriptor(event_.get(), this); }

  void handleEvents(int) override {
    eventfd_t value = 0;
    ::eventfd_read(event_.get(), &value);
    begun_.count_down();
    may_end_.wait();
  }

  void ask() { ::eventfd_write(event_.get(), 1); }
  void wait_until_begun() { begun_.wait(); }
  void end() { may_end_.count_down(); }

 private:
  tcp::Device& device_;
  FileDescriptor event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::latch begun_{1};
  std::latch may_end_{1};
};

// Rank 0 of three, whose peers' ends of the connections are the test's.
class GlooPairs : public testing::Test {
 protected:
  GlooPairs() {
    context_->setTimeout(kTimeout);
    GlooPair::check_layout(context(), 1);
    GlooPair::connect(context(), device(), 1, talking_.near.get());
    GlooPair::connect(context(), device(), 2, broken_.near.get());
  }
  tcp::Device& device() { return static_cast<tcp::Device&>(*device_); }
  tcp::Context& context() { return static_cast<tcp::Context&>(*context_); }

  // Sends the bytes that rank 1 would send before a message.
  void announce_message_from_1() {
    tcp::Op op;
    op.preamble.nbytes = sizeof op.preamble;
    op.preamble.opcode = tcp::Op::NOTIFY_SEND_READY;
    op.preamble.slot = 7;
    ASSERT_EQ(::send(talking_.far.get(), &op.preamble, sizeof op.preamble, 0),
              sizeof op.preamble);
  }

  std::shared_ptr<gloo::transport::Device> device_ =
      tcp::CreateDevice(tcp::attr("127.0.0.1"));
  std::shared_ptr<gloo::transport::Context> context_ =
      device_->createContext(0, 3);
  Connection talking_;
  Connection broken_;
};

// In one turn Gloo's thread gets a pause, during which a send that holds the
// context's lock fails, and a message that needs the lock.
TEST_F(GlooPairs, ASendThatFailsDoesNotWaitForTheThreadThatReads) {
  Pause first(device());
  Pause second(device());
  first.ask();
  first.wait_until_begun();
  second.ask();
  announce_message_from_1();
  first.end();
  second.wait_until_begun();
  time_out(broken_);
  std::byte nothing{};
  const auto buffer = context_->createUnboundBuffer(&nothing, 1);
  std::promise<void> sent;
  auto outcome = sent.get_future();
  std::thread sender([&] {
    try {
      buffer->send(2, 5, 0, 1);
      sent.set_value();
    } catch (...) {
      sent.set_exception(std::current_exception());
    }
  });
  if (outcome.wait_for(kTimeout) != std::future_status::ready) {
    std::cerr << "the send waits for Gloo's thread" << std::endl;
    std::_Exit(1);  // both threads would hang
  }
  second.end();
  sender.join();
  EXPECT_THROW(outcome.get(), std::exception);
}

}  // namespace
}  // namespace lockstep
