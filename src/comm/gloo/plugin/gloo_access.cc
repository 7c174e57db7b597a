#include "src/comm/gloo/plugin/gloo_access.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "src/comm/wire/transport_entry.h"

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}
#endif

namespace lockstep {
namespace {

// Hides what this thread reads and writes from the thread sanitizer, but not
// its locks. Debian's libgloo is built without the sanitizer, which therefore
// does not see how Gloo's thread lets go of memory before a thread of ours
// frees it: by atomic counts within the library.
class HiddenFromSanitizer {
 public:
#if defined(__SANITIZE_THREAD__)
  HiddenFromSanitizer() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~HiddenFromSanitizer() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
  HiddenFromSanitizer() {}
  ~HiddenFromSanitizer() {}
#endif
  HiddenFromSanitizer(const HiddenFromSanitizer&) = delete;
  HiddenFromSanitizer& operator=(const HiddenFromSanitizer&) = delete;
};

}  // namespace

GlooProgress GlooBuffer::look_locked(Base& buffer) {
  if (buffer.*(&GlooBuffer::recvCompletions_) > 0 ||
      buffer.*(&GlooBuffer::sendCompletions_) > 0)
    return GlooProgress::kDone;
  return buffer.*(&GlooBuffer::ex_) ? GlooProgress::kBroken
                                    : GlooProgress::kPending;
}

GlooProgress GlooBuffer::look(Base& buffer) {
  const std::lock_guard lock(buffer.*(&GlooBuffer::m_));
  return look_locked(buffer);
}

std::string GlooBuffer::error_of(Base& buffer) {
  const std::lock_guard lock(buffer.*(&GlooBuffer::m_));
  const std::exception_ptr error = buffer.*(&GlooBuffer::ex_);
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& why) {
    return why.what();
  }
  return {};
}

void GlooBuffer::wait(Base& buffer, GlooDirection direction,
                      std::chrono::microseconds timeout) {
  std::unique_lock lock(buffer.*(&GlooBuffer::m_));
  auto& changed = direction == GlooDirection::kSend
                      ? buffer.*(&GlooBuffer::sendCv_)
                      : buffer.*(&GlooBuffer::recvCv_);
  changed.wait_for(lock, timeout, [&] {
    return look_locked(buffer) != GlooProgress::kPending;
  });
}

void GlooBuffer::check_layout(Base& buffer) {
  constexpr int kSomePeer = 0x5eed;
  bool fits = look(buffer) == GlooProgress::kPending;
  buffer.handleRecvCompletion(kSomePeer);
  fits = fits && look(buffer) == GlooProgress::kDone &&
         buffer.*(&GlooBuffer::recvRank_) == kSomePeer;
  if (!fits)
    throw std::runtime_error(
        "this libgloo is not the one that the plug-in was built for; rebuild "
        "Lockstep with the installed libgloo-dev");
}

GlooPair::GlooPair(Context& context, Device& device, int peer)
    : Base(&context, &device, peer, context.getTimeout()) {}

GlooPair::~GlooPair() {
  // Before the object becomes a plain Gloo pair: Gloo's thread may be about to
  // call it.
  const std::lock_guard lock(m_);
  if (state_ != CLOSED) Base::changeState(CLOSED);
}

void GlooPair::connect(Context& context, Device& device, int peer, int socket) {
  std::unique_ptr<GlooPair> pair(new GlooPair(context, device, peer));
  pair->adopt(peer, socket);
  context.getPair(peer) = std::move(pair);
}

void GlooPair::check_layout(Context& context, int peer) {
  const auto& pair = context.createPair(peer);
  const std::size_t room =
      ::malloc_usable_size(dynamic_cast<void*>(pair.get()));
  // The most that the allocator adds to round the size up.
  constexpr std::size_t kRounding = 32;
  if (room < sizeof(Base) || room >= sizeof(Base) + kRounding)
    throw std::runtime_error(
        "the pairs of this libgloo differ in size from its headers; rebuild "
        "Lockstep with the installed libgloo-dev");
}

void GlooPair::adopt(int peer, int socket) {
  const std::lock_guard lock(m_);
  int listens = 0;
  socklen_t length = sizeof listens;
  ::getsockopt(fd_, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
  if (listens == 0)
    throw std::runtime_error(
        "a new pair of libgloo does not listen: another process on this host "
        "has connected to it, or Lockstep must be rebuilt with the installed "
        "libgloo-dev");
  const int copy = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (copy < 0)
    throw std::system_error(errno, std::generic_category(),
                            "could not copy a socket");
  device_->unregisterDescriptor(fd_, this);
  ::close(fd_);
  fd_ = copy;
  try {
    handleConnected();
  } catch (...) {
    // The peer is gone already. A pair's destructor ends the program unless the
    // loop knows its descriptor, so the pair gets one without events.
    fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ::close(copy);
    device_->registerDescriptor(fd_, EPOLLIN, this);
    throw BrokenConnection(peer, "the connection to rank " +
                                     std::to_string(peer) +
                                     " ended before it was used");
  }
}

int GlooPair::copy_socket() {
  const std::lock_guard lock(m_);
  return fd_ < 0 ? -1 : ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
}

void GlooPair::close() {
  const std::lock_guard lock(m_);
  if (state_ == CLOSED) return;
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  Base::changeState(CLOSED);
}

// A listening pair accepts no connection: adopt() provides it.
void GlooPair::handleEvents(int events) {
  const std::unique_lock lock(m_, std::try_to_lock);
  // The holder may wait for this thread. The kernel reports the event again.
  if (!lock) return;
  if (owes_close_) {
    owes_close_ = false;
    const HiddenFromSanitizer gloo;
    Base::changeState(CLOSED);
  } else if (state_ == CONNECTED) {
    handling_ = true;
    try {
      const HiddenFromSanitizer gloo;
      handleReadWrite(events);
    } catch (...) {
      // An answer could not be sent. Gloo's loop would not catch the exception.
      if (ex_ == nullptr) signalException(std::current_exception());
    }
    handling_ = false;
  }
}

// Closing waits for Gloo's thread. A thread that posts a message and finds the
// connection broken must not wait for it: it holds the context's lock, which
// Gloo's thread may be about to take.
void GlooPair::changeState(state next) noexcept {
  if (next == CLOSED && !handling_)
    owes_close_ = true;
  else
    Base::changeState(next);
}

}  // namespace lockstep
