#include "src/comm/gloo/plugin/gloo_transport.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <system_error>

#include "src/base/signals_blocked.h"
#include "src/comm/operation/peer_checks.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// No message uses it: channels are not negative.
constexpr std::uint64_t kCanarySlot = std::uint64_t{1} << 63;

std::uint64_t slot_of(const LockstepTransportMessage& message) {
  return static_cast<std::uint64_t>(message.channel) << 32 |
         static_cast<std::uint32_t>(message.tag);
}

// Blocks SIGPIPE: Gloo writes to connections that may be closed, without
// MSG_NOSIGNAL.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) != 0) return;
    sigset_t pending;
    sigpending(&pending);
    const timespec at_once{};
    if (sigismember(&pending, SIGPIPE) != 0)
      ::sigtimedwait(&signal_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
};

// Gloo does not say that descriptors have run out.
void require_descriptors() {
  std::array<int, 4> spare{};
  for (int& each : spare) each = ::eventfd(0, EFD_CLOEXEC);
  const int reason = errno;
  const bool enough = spare.back() >= 0;
  for (const int each : spare)
    if (each >= 0) ::close(each);
  if (!enough)
    throw std::system_error(reason, std::generic_category(),
                            "could not start Gloo");
}

// `error` is Gloo's, with the kernel's reason. The peer is not to blame if the
// kernel cannot copy from or to this process's memory.
void refuse_bad_memory(const std::string& error) {
  if (error.find(std::strerror(EFAULT)) == std::string::npos) return;
  throw std::runtime_error(
      "the memory of a buffer of this rank cannot be read or written\n"
      "  likely:  the memory was freed, or is shorter than the buffer says\n"
      "  next:    keep the memory of each buffer until its Work is done");
}

// The process's device, which owns Gloo's thread. That thread takes no signals.
std::shared_ptr<gloo::transport::Device> shared_device() {
  static std::mutex mutex;
  static std::weak_ptr<gloo::transport::Device> shared;
  const std::lock_guard lock(mutex);
  if (auto device = shared.lock()) return device;
  require_descriptors();
  const SignalsBlocked blocked;
  // Pairs listen there until they get their connections; other hosts cannot
  // reach it.
  gloo::transport::tcp::attr loopback("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(loopback);
  shared = device;
  return device;
}

// Whether sent bytes have not reached the peer's kernel, and may still do so.
bool has_unsent(int socket) {
  int unsent = 0;
  if (::ioctl(socket, SIOCOUTQ, &unsent) != 0 || unsent == 0) return false;
  pollfd item{socket, 0, 0};
  return ::poll(&item, 1, 1) == 0;  // else the connection has ended
}

// Closing a socket with unread bytes resets the connection and drops bytes that
// the peer's kernel has not taken yet. So this rank announces the end, and
// keeps the sockets open until the peers' kernels have all bytes. They usually
// have; this rank does not wait for a frozen peer. Gloo's thread reads bytes
// that come meanwhile.
void deliver_what_was_sent(const std::vector<int>& sockets) {
  const auto end = Clock::now() + std::chrono::seconds(2);
  for (const int socket : sockets) ::shutdown(socket, SHUT_WR);
  for (const int socket : sockets)
    while (has_unsent(socket) && Clock::now() < end) continue;
}

}  // namespace

GlooTransport::GlooTransport(const LockstepTransportConfig& config)
    : rank_(config.rank),
      size_(config.size),
      canaries_(static_cast<std::size_t>(config.size)) {
  for (int peer = 0; peer < size_; ++peer)
    if (config.sockets[peer] >= 0) attach(peer, config.sockets[peer]);
}

void GlooTransport::open() {
  const auto device = shared_device();
  context_ = device->createContext(rank_, size_);
  context_->setTimeout(std::chrono::hours(24));
  auto probe = context_->createUnboundBuffer(&nothing_, 1);
  GlooBuffer::check_layout(
      static_cast<gloo::transport::tcp::UnboundBuffer&>(*probe));
  device_ = device;
}

void GlooTransport::attach(int peer, int socket) {
  const NoSigpipe guard;
  const bool is_first = !device_;
  if (is_first) open();
  auto& device = static_cast<gloo::transport::tcp::Device&>(*device_);
  auto& context = static_cast<gloo::transport::tcp::Context&>(*context_);
  try {
    if (is_first) GlooPair::check_layout(context, peer);
    GlooPair::connect(context, device, peer, socket);
  } catch (...) {
    context.getPair(peer).reset();
    if (is_first) {  // the next one checks again
      context_.reset();
      device_.reset();
    }
    throw;
  }
  try {
    auto canary = context_->createUnboundBuffer(&nothing_, 1);
    canary->recv(peer, kCanarySlot, 0, 1);
    canaries_[static_cast<std::size_t>(peer)] = std::move(canary);
  } catch (const std::exception&) {
    return;  // it has left already, which alone is not an error
  }
}

GlooTransport::~GlooTransport() {
  leave();
  canaries_.clear();
  context_.reset();
}

GlooPair* GlooTransport::pair(int peer) const {
  if (!context_) return nullptr;
  return static_cast<GlooPair*>(context_->getPair(peer).get());
}

std::unique_ptr<GlooRequest> GlooTransport::post(
    const LockstepTransportMessage& message, GlooDirection direction) {
  const NoSigpipe guard;
  auto request = std::make_unique<GlooRequest>();
  request->buffer = context_->createUnboundBuffer(message.data, message.bytes);
  request->direction = direction;
  request->peer = message.peer;
  const std::uint64_t slot = slot_of(message);
  try {
    if (direction == GlooDirection::kSend)
      request->buffer->send(message.peer, slot, 0, message.bytes);
    else
      request->buffer->recv(message.peer, slot, 0, message.bytes);
  } catch (const std::exception& error) {
    refuse_bad_memory(error.what());
    throw BrokenConnection(message.peer, error.what());
  }
  return request;
}

std::unique_ptr<GlooRequest> GlooTransport::send(
    const LockstepTransportMessage& message) {
  return post(message, GlooDirection::kSend);
}

std::unique_ptr<GlooRequest> GlooTransport::receive(
    const LockstepTransportMessage& message) {
  return post(message, GlooDirection::kReceive);
}

bool GlooTransport::connected(int peer) const {
  const auto& canary = canaries_[static_cast<std::size_t>(peer)];
  return canary != nullptr &&
         GlooBuffer::look(static_cast<gloo::transport::tcp::UnboundBuffer&>(
             *canary)) == GlooProgress::kPending;
}

// All operations of a pair break together, for one reason.
void GlooTransport::fail_broken(GlooRequest& request) const {
  const auto& canary = canaries_[static_cast<std::size_t>(request.peer)];
  refuse_bad_memory(GlooBuffer::error_of(request.tcp()));
  if (canary)
    refuse_bad_memory(GlooBuffer::error_of(
        static_cast<gloo::transport::tcp::UnboundBuffer&>(*canary)));
  throw BrokenConnection(request.peer, "the connection to it ended");
}

LockstepTransportStatus GlooTransport::wait(GlooRequest& request,
                                            microseconds timeout) {
  const auto end = Clock::now() + timeout;
  while (true) {
    if (closed_) return kTransportClosed;
    // Check the connection first: a message that completed before it ended is
    // done.
    const bool was_connected = connected(request.peer);
    const GlooProgress progress = GlooBuffer::look(request.tcp());
    if (progress == GlooProgress::kDone) return kTransportDone;
    if (!was_connected || progress == GlooProgress::kBroken)
      fail_broken(request);
    const auto left =
        std::chrono::duration_cast<microseconds>(end - Clock::now());
    if (left.count() <= 0) return kTransportNotYet;
    GlooBuffer::wait(request.tcp(), request.direction,
                     std::min<microseconds>(left, kPeerCheckInterval));
  }
}

void GlooTransport::leave() {
  if (closed_.exchange(true)) return;
  std::vector<int> sockets;
  for (int peer = 0; peer < size_; ++peer) {
    const int copy = pair(peer) == nullptr ? -1 : pair(peer)->copy_socket();
    if (copy >= 0) sockets.push_back(copy);
  }
  deliver_what_was_sent(sockets);
  for (const int socket : sockets) ::close(socket);
}

void GlooTransport::close() {
  if (closed_.exchange(true)) return;
  for (int peer = 0; peer < size_; ++peer)
    if (pair(peer) != nullptr) pair(peer)->close();
}

}  // namespace lockstep
