// Many descriptors of which few are ready at a time: epoll(7), whose cost does
// not grow with the number of descriptors that are not ready.
//
// Threads: one thread at a time.
// Errors:  SystemError.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

class Epoll {
 public:
  struct Ready {
    std::uint64_t tag = 0;     // the caller's number for the descriptor
    std::uint32_t events = 0;  // EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP
  };

  Epoll();

  // Reports `events`, and errors, of `descriptor` until remove(), which comes
  // before the descriptor is closed: another process may have a copy of it.
  void add(int descriptor, std::uint32_t events, std::uint64_t tag);
  void change(int descriptor, std::uint32_t events, std::uint64_t tag);
  // Does nothing for a descriptor that was not added.
  void remove(int descriptor);

  // Waits until a descriptor is ready or the deadline passes; returns some of
  // those that are ready. Valid until the next call.
  std::span<const Ready> wait(Deadline deadline);

 private:
  void control(int operation, int descriptor, std::uint32_t events,
               std::uint64_t tag);

  FileDescriptor epoll_;
  std::vector<epoll_event> events_;
  std::vector<Ready> ready_;
};

}  // namespace lockstep
