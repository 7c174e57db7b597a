// The first step of a collective: every rank announces its call to every other
// rank, together with small elements.
//
// A control message is an AnnouncedCall, followed by up to kInlineBytes for
// that rank. Receiving all of them is the mismatch check, a barrier, and for
// small operations the entire communication. The receives of the next two
// operations are always posted, so that no message waits.
//
// Threads: the thread that carries out the group's collective.
// Errors:  those of WireCore's waits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "src/comm/wire/wire_core.h"

namespace lockstep {

class ControlExchange {
 public:
  static constexpr std::size_t kInlineBytes = std::size_t{16} << 10;

  explicit ControlExchange(WireCore& core);

  // Sends `mine` to every other rank, with the bytes from `extra(rank)`: it
  // writes at most kInlineBytes to the span and returns their number. Returns
  // every rank's call, including this rank's.
  using FillExtra = std::function<std::size_t(int rank, std::span<std::byte>)>;
  std::vector<AnnouncedCall> run(const AnnouncedCall& mine,
                                 const FillExtra& extra, Deadline deadline);

  // The extra bytes from `rank` in the last run(); valid until finish().
  const std::byte* extra(int rank) const;

  // The caller no longer needs the messages of the last run().
  void finish(Deadline deadline);

 private:
  static constexpr std::size_t kMessageBytes =
      sizeof(AnnouncedCall) + kInlineBytes;
  // The number of operations whose receives are posted.
  static constexpr std::size_t kAhead = 2;

  struct Mailbox {
    std::vector<std::byte> memory;
    WireCore::Request request;
  };
  struct Peer {
    std::array<Mailbox, kAhead> in;
    Mailbox out;
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  Mailbox& in(int rank) { return peer(rank).in[turn_ % kAhead]; }
  void post(int rank, Mailbox& mailbox);
  void post_if_there(int rank, Mailbox& mailbox);
  void send(int rank, const AnnouncedCall& mine, const FillExtra& extra,
            Deadline deadline);

  WireCore& core_;
  std::vector<Peer> peers_;
  std::size_t turn_ = 0;
};

}  // namespace lockstep
