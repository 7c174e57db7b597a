#include "src/net/epoll.h"

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kEventsAtOnce = 256;

}  // namespace

Epoll::Epoll()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), events_(kEventsAtOnce) {
  if (!epoll_) throw SystemError("could not create an epoll instance", errno);
}

void Epoll::add(int descriptor, std::uint32_t events, std::uint64_t tag) {
  control(EPOLL_CTL_ADD, descriptor, events, tag);
}

void Epoll::change(int descriptor, std::uint32_t events, std::uint64_t tag) {
  control(EPOLL_CTL_MOD, descriptor, events, tag);
}

void Epoll::remove(int descriptor) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

void Epoll::control(int operation, int descriptor, std::uint32_t events,
                    std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) != 0)
    throw SystemError("could not watch a descriptor", errno);
}

std::span<const Epoll::Ready> Epoll::wait(Deadline deadline) {
  ready_.clear();
  const int count = ::epoll_wait(epoll_.get(), events_.data(),
                                 static_cast<int>(events_.size()),
                                 deadline.poll_milliseconds());
  if (count < 0 && errno != EINTR)
    throw SystemError("could not wait for descriptors", errno);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<std::size_t>(i)];
    ready_.push_back({event.data.u64, event.events});
  }
  return ready_;
}

}  // namespace lockstep
