// The abort notice: the fault that made a rank give up, which it sends to all
// ranks that it is connected to before it breaks the connections.
//
// The store reports the fault to all ranks too, unless it ended with the rank
// that served it or is unreachable, for example because a host lost its link.
// Then only this notice keeps the others from blaming a rank that gave up
// because of another. Delivery is best effort: a notice may be lost while a
// connection breaks.
//
// A rank that leaves in good order sends a goodbye instead, so that the others
// know it from a rank that has died.
//
// Threads: every method may be called from any thread.
// Errors:  none thrown: a notice that cannot be sent or received is skipped.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>

#include "lockstep/base/deadline.h"
#include "src/base/mutex.h"
#include "src/comm/rendezvous/group_fault.h"
#include "src/comm/wire/message_transport.h"

namespace lockstep {

class AbortNotice {
 public:
  // The transport must have left or closed before this object is destroyed.
  explicit AbortNotice(MessageTransport& transport);

  // Sends the fault to all, also to ranks that connect from now on, unless one
  // was sent before. Returns the fault that was sent, when the others have sent
  // theirs, so that no rank disconnects while another still listens; at the
  // latest after `patience`.
  Fault say(const Fault& fault, std::chrono::milliseconds patience) noexcept;

  // Sends the goodbye of this rank, `own`, to all, unless one of both was sent
  // before. Returns when the others have it, at the latest after `patience`: a
  // rank that was connected a moment ago may not listen yet. Call it when no
  // rank can connect any more.
  void say_goodbye(int own, std::chrono::milliseconds patience) noexcept;

  // The notice from `peer`, if any.
  std::optional<Fault> heard_from(int peer) noexcept;
  bool has_said_goodbye(int peer) noexcept;
  // Whether the connection to `peer` has ended without a notice or a goodbye.
  bool has_died(int peer) noexcept;

  // Whether this rank was connected to `peer` when the group formed. Then
  // neither can miss the other's notice by connecting too late.
  bool met_early(int peer) noexcept;
  // The first of the ranks to which this rank was connected and whose
  // connection has ended without a notice.
  std::optional<int> first_lost() noexcept;

  // A notice from any peer.
  std::optional<Fault> heard() noexcept;

 private:
  static constexpr std::size_t kBytes = 1024;
  using Message = std::array<std::byte, kBytes>;
  // A connected rank.
  struct Peer {
    Message memory{};
    MessageTransport::Request receives;
    MessageTransport::Request sends;
    std::size_t number = 0;  // in the order of their connections
    bool is_early = false;
  };

  void say_to_all(const Fault& fault) LOCKSTEP_REQUIRES(mutex_);
  void listen_to(int number);
  void send_to(int number, Peer& peer) noexcept LOCKSTEP_REQUIRES(mutex_);
  // Whether each rank but the culprit has this rank's notice, or has ended.
  bool all_have_heard() noexcept;
  // Whether each of them has sent its own, too.
  bool all_have_spoken() noexcept;
  // The notice or the goodbye.
  static std::optional<Fault> words_of(Peer& peer) noexcept;
  static bool is_over(MessageTransport::Request& request) noexcept;
  static bool is_lost(MessageTransport::Request& request) noexcept;

  MessageTransport& transport_;
  Mutex mutex_;
  // Once it has been said.
  std::optional<Fault> said_ LOCKSTEP_GUARDED_BY(mutex_);
  bool has_left_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // it was a goodbye
  Message own_ LOCKSTEP_GUARDED_BY(mutex_){};
  std::map<int, Peer> peers_ LOCKSTEP_GUARDED_BY(mutex_);
  bool has_formed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  const MessageTransport::ConnectionWatch watch_;
};

}  // namespace lockstep
