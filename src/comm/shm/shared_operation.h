// One rank's view of an operation once all ranks have announced theirs: the
// call of every rank, and where every rank's elements lie.
//
// Threads: a value; the protocol guards the memory that it refers to.
#pragma once

#include <memory>
#include <vector>

#include "src/comm/operation/backend.h"
#include "src/comm/operation/routes.h"
#include "src/comm/shm/peer_heaps.h"
#include "src/comm/shm/rounds.h"

namespace lockstep {

// The objects that a group's operations use.
struct ShmContext {
  GroupIdentity identity;
  ControlView control;
  Rounds* rounds = nullptr;
  PeerHeaps* heaps = nullptr;
};

class SharedOperation {
 public:
  // Takes over the operation's lists; the memory they point to stays the
  // caller's.
  void begin(const Operation& operation, const GroupIdentity& identity);

  const Operation& operation() const { return operation_; }
  const Signature& signature() const { return signature_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Whether all elements of all ranks are combined as a whole: all_reduce and
  // reduce.
  bool reduces_whole() const {
    return operation_.kind == OperationKind::kAllReduce ||
           operation_.kind == OperationKind::kReduce;
  }

  // Whether ranks write other ranks' memory, and so must reach it: such an
  // operation cannot be staged.
  bool updates() const {
    return operation_.kind == OperationKind::kShardedUpdate;
  }

  // Fills this rank's slot for the first round.
  void publish(const ShmContext& context, Slot& slot) const;

  // Reads the slots of all ranks in the first round. Throws Mismatch when they
  // do not match.
  void meet(const ShmContext& context);

  // After meet(): the place of all elements. kHeap means that some are in heaps
  // and the rest inline.
  Place place() const { return place_; }

  Routes routes() const { return {operation_, rank_, ranks_}; }

  // After meet(), unless place() is kStaged: finds the addresses of all
  // elements.
  void locate(const ShmContext& context);

  // After locate(): rank `r`'s source list, at local addresses, followed by
  // what it updates; and what it brings for rank `to`.
  const std::vector<Buffer>& source_of(int r) const {
    return sources_[static_cast<std::size_t>(r)];
  }
  BufferSpan outgoing(int r, int to) const;

  // In the first round, and while a DirectTransfer finishes the operation: the
  // buffers of this rank that its peers write to.
  std::span<const Buffer> written_by_peers(const ShmContext& context) const;

  // After meet(): the most bytes that any rank brings for any other.
  std::size_t longest_route() const;

 private:
  // The buffers that this rank announces: its source, and what it updates.
  std::span<const Buffer> told() const;
  void check_signatures(const ShmContext& context) const;
  void read_counts(const ShmContext& context);
  std::vector<std::int64_t> counts_of_source(int r) const;
  void locate_source(const ShmContext& context, int r);
  void publish_pieces(const ShmContext& context, Slot& slot) const;

  Operation operation_;
  std::vector<Buffer> inputs_;
  std::vector<Buffer> outputs_;
  std::vector<Buffer> both_;  // of an update
  std::string label_;
  Signature signature_;
  int rank_ = 0;
  int ranks_ = 1;
  std::vector<std::int64_t> counts_;  // counts_of(), this rank's
  std::size_t bytes_ = 0;             // of this rank's source

  Place place_ = Place::kInline;
  std::vector<std::vector<std::int64_t>> all_counts_;  // by rank
  std::vector<std::vector<Buffer>> sources_;           // by rank
};

}  // namespace lockstep
