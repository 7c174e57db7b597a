// The first step of a collective: every rank tells every other what it called,
// and small elements come along.
//
// A control message is an AnnouncedCall, followed by up to kInlineBytes for
// that rank. Receiving all of them is the mismatch check, a barrier, and for
// small operations all the communication there is. The receives of the next two
// operations are always posted, so that no message waits.
//
// Threads: whoever carries out the group's collective.
// Errors:  WireCore's waits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/comm/wire/wire_core.h"

namespace lockstep {

class ControlExchange {
 public:
  static constexpr std::size_t kInlineBytes = std::size_t{16} << 10;

  explicit ControlExchange(WireCore& core);

  // Sends `mine` to every other rank, with what `extra(rank)` fills in: it
  // writes at most kInlineBytes to the span and returns how many. Returns every
  // rank's call, this one's included.
  using FillExtra = std::function<std::size_t(int rank, std::span<std::byte>)>;
  std::vector<AnnouncedCall> run(const AnnouncedCall& mine,
                                 const FillExtra& extra, Deadline deadline);

  // What came along from `rank` in the last run(), until finish().
  const std::byte* extra(int rank) const;

  // The messages of the last run() have been used up.
  void finish(Deadline deadline);

 private:
  static constexpr std::size_t kMessageBytes =
      sizeof(AnnouncedCall) + kInlineBytes;
  // Operations whose receives are posted.
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
