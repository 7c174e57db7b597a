// The messages of one group: which arrival belongs to which receive.
//
// Arrivals and receives of one peer, channel and tag meet in order. A short
// message without a matching receive is kept here; a long message stays with
// its sender until a receive matches it.
//
// Threads: the progress thread.
// Errors:  MpiError; an error of one peer ends only the requests that need it.
#pragma once

#include <compare>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/comm/mpi/plugin/mpi_packet.h"
#include "src/comm/mpi/plugin/mpi_request.h"
#include "src/comm/mpi/plugin/mpi_router.h"
#include "src/comm/mpi/plugin/mpi_stream.h"

namespace lockstep {

class MpiGroup {
 public:
  // `world_ranks` has one entry per rank of the group.
  MpiGroup(MpiRouter& router, MpiGroupId id, int rank,
           std::vector<int> world_ranks);

  const MpiGroupId& id() const { return id_; }

  void send(const MpiRequestPointer& request);
  void receive(const MpiRequestPointer& request);
  // Drops a request that was abandoned before it was done.
  void forget(const MpiRequestPointer& request);

  // Ends every request of this rank, and tells the peers to do the same.
  void close();
  // Tells the peers that this rank sends nothing more.
  void leave();
  // Ends every request with `why`, without telling the peers.
  void fail(const std::string& why);

  // Whether the group broke and some peers may still be in it.
  bool is_unsettled() const;

  void take(const MpiPacket& packet, std::span<const std::byte> message);
  bool advance();

 private:
  enum class Presence { kHere, kLeft, kClosed };

  struct LaneKey {
    int peer = 0;
    int channel = 0;
    int tag = 0;
    auto operator<=>(const LaneKey&) const = default;
  };
  struct Arrival {
    MpiPacket packet;
    std::vector<std::byte> message{};
  };
  // At most one of the two lists is non-empty.
  struct Lane {
    std::deque<MpiRequestPointer> wanted{};
    std::deque<Arrival> arrived{};
  };

  int world_rank(int peer) const {
    return world_ranks_[static_cast<std::size_t>(peer)];
  }
  Presence& presence(int peer) {
    return presence_[static_cast<std::size_t>(peer)];
  }
  MpiPacket packet(MpiPacketKind kind) const;
  bool refused(const MpiRequestPointer& request);
  void meet(const MpiRequestPointer& request, const MpiPacket& packet,
            std::span<const std::byte> message);
  void arrive(const MpiPacket& packet, std::span<const std::byte> message);
  void begin_stream(const MpiPacket& accepted);
  void part(int peer, Presence presence);
  void end_stream(MpiStream& stream, LockstepTransportStatus status,
                  const std::string& why);
  void end_all(LockstepTransportStatus status, const std::string& why);
  void tell_peers(MpiPacketKind kind);

  MpiRouter& router_;
  const MpiGroupId id_;
  const int rank_;
  const std::vector<int> world_ranks_;
  std::vector<Presence> presence_;
  std::map<LaneKey, Lane> lanes_;
  std::map<std::uint64_t, MpiRequestPointer> offers_;  // of long sends
  std::uint64_t next_offer_ = 0;
  std::list<MpiStream> streams_;
  LockstepTransportStatus ended_ = kTransportNotYet;
  std::string why_ended_;
  bool torn_ = false;  // something was promised and not delivered
};

}  // namespace lockstep
