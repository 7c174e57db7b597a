#include "lockstep/comm/gloo/plugin/gloo_access.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace lockstep {

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

void GlooBuffer::wait(Base& buffer, GlooDirection direction,
                      std::chrono::microseconds patience) {
  std::unique_lock lock(buffer.*(&GlooBuffer::m_));
  auto& changed = direction == GlooDirection::kSend
                      ? buffer.*(&GlooBuffer::sendCv_)
                      : buffer.*(&GlooBuffer::recvCv_);
  changed.wait_for(lock, patience, [&] {
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

void GlooPair::adopt(Base& pair, gloo::transport::tcp::Device& device,
                     int socket) {
  const std::lock_guard lock(pair.*(&GlooPair::m_));
  int& descriptor = pair.*(&GlooPair::fd_);
  int listens = 0;
  socklen_t length = sizeof listens;
  ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
  if (listens == 0)
    throw std::runtime_error(
        "a new pair of this libgloo does not listen; rebuild Lockstep with the "
        "installed libgloo-dev");
  const int copy = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (copy < 0)
    throw std::system_error(errno, std::generic_category(),
                            "could not copy a socket");
  device.unregisterDescriptor(descriptor, &pair);
  ::close(descriptor);
  descriptor = copy;
  try {
    (pair.*(&GlooPair::handleConnected))();
  } catch (...) {
    // The peer has gone already. A pair's destructor ends the program unless
    // the loop knows its descriptor: it gets one on which nothing happens.
    descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ::close(copy);
    device.registerDescriptor(descriptor, EPOLLIN, &pair);
    throw;
  }
}

int GlooPair::socket(Base& pair) {
  const std::lock_guard lock(pair.*(&GlooPair::m_));
  return pair.*(&GlooPair::fd_);
}

}  // namespace lockstep
