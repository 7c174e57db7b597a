// What a rank tells all others before it breaks its connections to them: the
// fault that made it give up.
//
// The store tells everybody too, unless it ended with the rank that served it
// or is out of reach, as when a host loses its link. Then only this keeps a
// rank that gave up because of another from being taken for the culprit. It is
// an attempt: what is on its way while a connection breaks may be lost.
//
// Threads: every method may be called from any thread.
// Errors:  none thrown: what cannot be said or heard is left out.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/wire/group_fault.h"
#include "lockstep/comm/wire/message_transport.h"

namespace lockstep {

class LastWords {
 public:
  // The transport must have left or closed before this goes.
  LastWords(MessageTransport& transport, int rank, int size);

  // Returns when the others have said theirs, so that nobody hangs up on one
  // who still listens; after a tenth of a second at most, whatever they do.
  void say(const Fault& fault) noexcept;

  // What `peer` has said.
  std::optional<Fault> heard_from(int peer) noexcept;

  // What anybody has said.
  std::optional<Fault> heard() noexcept;

 private:
  static constexpr std::size_t kBytes = 1024;
  using Message = std::array<std::byte, kBytes>;
  struct Peer {
    Message memory{};
    MessageTransport::Request request;
  };

  static std::optional<Fault> words_of(Peer& peer) noexcept;
  static void wait(MessageTransport::Request& request,
                   Deadline deadline) noexcept;

  MessageTransport& transport_;
  const int rank_;
  Mutex mutex_;
  Message own_ LOCKSTEP_GUARDED_BY(mutex_){};
  std::vector<Peer> peers_ LOCKSTEP_GUARDED_BY(mutex_);
  // Sends that were not done in time.
  std::vector<MessageTransport::Request> unsaid_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
