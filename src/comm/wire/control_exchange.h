// The first step of a collective: ranks announce their calls to each other,
// together with small elements; every rank to every other one, unless
// HostExchange needs fewer.
//
// A control message is an AnnouncedCall, followed by up to kInlineBytes for
// that rank. Receiving all of them is the mismatch check, a barrier, and for
// small operations the entire communication. From the first exchange of two
// ranks on, the receives of their next two are posted, so that no message
// waits.
//
// Threads: the thread that carries out the group's collective.
// Errors:  those of WireCore's waits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "src/comm/wire/wire_core.h"

namespace lockstep {

class ControlExchange {
 public:
  static constexpr std::size_t kInlineBytes = std::size_t{16} << 10;

  explicit ControlExchange(WireCore& core);

  // Sends `mine` to each of `peers`, with the bytes from `extra(rank)`: it
  // writes at most kInlineBytes to the span and returns their number. Returns
  // the calls of those ranks, by rank; in all other places `mine`. If this rank
  // exchanges calls with another one, that rank does so with this one.
  using FillExtra = std::function<std::size_t(int rank, std::span<std::byte>)>;
  std::vector<AnnouncedCall> run(std::span<const int> peers,
                                 const AnnouncedCall& mine,
                                 const FillExtra& extra, Deadline deadline);

  // All other ranks, beginning with the one after this rank, so that not all
  // ranks send to the same rank first.
  std::span<const int> everyone() const { return everyone_; }

  // The extra bytes from `rank` in the last run(); valid until finish().
  const std::byte* extra(int rank) const;

  // Throws if a message to or from one of `peers` in the next run(), or in the
  // present one, cannot come or go.
  void check(std::span<const int> peers);

  // Whether the message of `rank` in the present run() has come.
  bool has_come(int rank) { return in(rank).request.done(); }

  // The caller no longer needs the messages of the last run().
  void finish(Deadline deadline);

 private:
  static constexpr std::size_t kMessageBytes =
      sizeof(AnnouncedCall) + kInlineBytes;
  // The number of operations whose receives are posted.
  static constexpr std::size_t kAhead = 2;

  // Not initialised, so that the kernel gives memory to the used parts only.
  struct Mailbox {
    std::unique_ptr<std::byte[]> memory;
    WireCore::Request request;
  };
  struct Peer {
    std::array<Mailbox, kAhead> in;
    Mailbox out;
    std::size_t turn = 0;  // the number of exchanges with this rank
  };

  Peer& peer(int rank) { return peers_[rank]; }
  Mailbox& in(int rank) { return peer(rank).in[peer(rank).turn % kAhead]; }
  void begin_with(int rank);
  void post(int rank, Mailbox& mailbox);
  void post_if_there(int rank, Mailbox& mailbox);
  void send(int rank, const AnnouncedCall& mine, const FillExtra& extra,
            Deadline deadline);

  WireCore& core_;
  std::map<int, Peer> peers_;  // of earlier exchanges
  std::vector<int> everyone_;
  std::vector<int> last_;  // the peers of the last run()
};

}  // namespace lockstep
