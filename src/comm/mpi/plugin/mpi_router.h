// Delivers every packet to its group.
//
// A few receives for packets are always posted. The router keeps packets for a
// group that this process has not made yet, and drops packets for a group that
// it has left.
//
// Threads: the progress thread.
// Errors:  MpiError.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/mpi/plugin/mpi_link.h"
#include "src/comm/mpi/plugin/mpi_packet.h"
#include "src/comm/mpi/plugin/mpi_request.h"

namespace lockstep {

class MpiGroup;

class MpiRouter {
 public:
  void start();

  // Makes all possible progress; returns whether it made any.
  bool advance();
  // Whether the engine must poll: for a group, or for a packet under way.
  bool is_busy() const {
    return !groups_.empty() || !broken_.empty() || !leaving_.empty() || exits_;
  }
  bool is_sending() const { return !leaving_.empty(); }
  // Whether this process and others may still hang in each other's messages,
  // because not all have left a group that broke.
  bool is_unsettled() const {
    return has_failed() || !broken_.empty() || link_.has_forgotten_sends();
  }
  // MPI has failed: ends every request with `why`.
  void fail(const std::string& why);
  bool has_failed() const { return !why_failed_.empty(); }

  // Announces, as soon as possible, that this process is ready to finalise MPI.
  void announce_exit();
  // Whether all processes are ready. MPI_Finalize cannot find this out: mpirun
  // 4.1 hangs when a process ends while others wait there.
  bool all_exit() const { return all_exit_; }

  // Finalises MPI if all processes are ready.
  void finish();

  // The number of earlier groups with the same `members`.
  std::uint64_t next_turn(std::uint64_t members) { return turns_[members]++; }
  void join(const std::shared_ptr<MpiGroup>& group);
  void leave(const std::shared_ptr<MpiGroup>& group);

  // Sends a packet; `request` (may be null) completes with it.
  void send(int world_rank, const MpiPacket& packet);
  void send(int world_rank, MpiBlock block, MpiRequestPointer request);

  MpiLink& link() { return link_; }
  // A tag for a stream to this process. A tag that is not given back is never
  // reused, because a message may still arrive with it.
  int take_stream_tag();
  void give_back_stream_tag(int tag) { free_tags_.push_back(tag); }

 private:
  static constexpr std::size_t kSlots = 8;

  struct Leaving {
    MpiTransfer transfer;
    MpiRequestPointer request;
  };

  bool take_packets();
  void deliver(MpiBlock block, std::size_t bytes);
  void count_exit();

  MpiLink link_;
  std::array<MpiTransfer, kSlots> slots_;
  std::size_t oldest_ = 0;
  std::list<Leaving> leaving_;
  std::map<MpiGroupId, std::shared_ptr<MpiGroup>> groups_;
  // Broken groups that this process has left, but not all others.
  std::map<MpiGroupId, std::shared_ptr<MpiGroup>> broken_;
  std::map<std::uint64_t, std::uint64_t> turns_;
  std::map<MpiGroupId, std::vector<std::pair<MpiBlock, std::size_t>>> early_;
  std::vector<int> free_tags_;
  int next_tag_ = kMpiFirstStreamTag;
  std::string why_failed_;
  bool exits_ = false;
  int exiting_ = 0;  // on world rank 0: how many processes are ready
  bool all_exit_ = false;
};

}  // namespace lockstep
