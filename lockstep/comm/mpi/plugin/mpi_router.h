// Brings every packet to the group that it is for.
//
// A few receives for packets are always posted. What comes for a group that
// this process has not made yet is kept; what comes for one that it has left is
// dropped.
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

#include "lockstep/comm/mpi/plugin/mpi_link.h"
#include "lockstep/comm/mpi/plugin/mpi_packet.h"
#include "lockstep/comm/mpi/plugin/mpi_request.h"

namespace lockstep {

class MpiGroup;

class MpiRouter {
 public:
  void start();

  // Moves on what can be; returns whether anything happened.
  bool advance();
  // Whether something is to be waited for: a group, or a packet on its way.
  bool is_busy() const {
    return !groups_.empty() || !broken_.empty() || !leaving_.empty() || exits_;
  }
  bool is_sending() const { return !leaving_.empty(); }
  // Whether other processes may hang in something of this one's, and it in
  // something of theirs: they have not all left a group that broke.
  bool is_unsettled() const {
    return has_failed() || !broken_.empty() || link_.has_forgotten_sends();
  }
  // Nothing works any more: every request ends with `why`.
  void fail(const std::string& why);
  bool has_failed() const { return !why_failed_.empty(); }

  // Says, once it can be said, that this process is ready for MPI's end.
  void announce_exit();
  // Whether all are. MPI's own way of finding out, in MPI_Finalize, is not to
  // be had: mpirun 4.1 hangs when a process ends while others wait there.
  bool all_exit() const { return all_exit_; }

  // Ends MPI, if all processes are ready.
  void finish();

  // How many groups of the same `members` there were before.
  std::uint64_t next_turn(std::uint64_t members) { return turns_[members]++; }
  void join(const std::shared_ptr<MpiGroup>& group);
  void leave(const std::shared_ptr<MpiGroup>& group);

  // Sends a packet; `request` may be null, and is done with it.
  void send(int world_rank, const MpiPacket& packet);
  void send(int world_rank, MpiBlock block, MpiRequestPointer request);

  MpiLink& link() { return link_; }
  // A tag for a stream to this process. One that is not given back is never
  // used again, because something may yet come with it.
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
  // Those that broke and that this process has left, not all others.
  std::map<MpiGroupId, std::shared_ptr<MpiGroup>> broken_;
  std::map<std::uint64_t, std::uint64_t> turns_;
  std::map<MpiGroupId, std::vector<std::pair<MpiBlock, std::size_t>>> early_;
  std::vector<int> free_tags_;
  int next_tag_ = kMpiFirstStreamTag;
  std::string why_failed_;
  bool exits_ = false;
  int exiting_ = 0;  // on world rank 0: how many are ready
  bool all_exit_ = false;
};

}  // namespace lockstep
