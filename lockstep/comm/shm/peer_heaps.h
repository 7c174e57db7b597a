// The heaps of a group's ranks: this rank's own, and where its peers' are
// mapped here.
//
// Buffers are told by where they lie in a heap only once every rank has said
// that it has all heaps mapped; a rank that lacks the address space for them
// makes all stage their elements, and nobody reads what it cannot reach.
//
// Threads: in_reach() by one thread at a time; all else by any.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/comm/heap.h"
#include "lockstep/comm/shm/control_block.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class PeerHeaps {
 public:
  // `own` is null when this rank has none; `descriptors` has the heap of each
  // rank that has one.
  PeerHeaps(ControlView control, int rank, std::shared_ptr<Heap> own,
            const std::vector<FileDescriptor>& descriptors);

  // The same heaps for a duplicate of the group, whose block is `control`.
  PeerHeaps(ControlView control, int rank, const PeerHeaps& same);

  // Whether all ranks have all heaps mapped. Some may not have said so yet, so
  // that false turns into true, and never back.
  bool in_reach();

  // Where this rank's memory lies in its heap, for peers to reach; nothing when
  // some of them cannot.
  std::optional<Piece> find(const void* address, std::size_t bytes);

  // Where a piece of rank `r`'s heap is here; null when it lies outside.
  std::byte* at(int r, const Piece& piece) const;

  // Null without a heap, or when it is full.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // This rank's, or null.
  std::shared_ptr<Heap> own() const { return own_; }

  // Whether no memory of this rank's heap was made private.
  bool all_shared() const { return !own_ || !own_->has_private_pages(); }

  // Throws when some of the buffers, which lie in this rank's heap, were made
  // private: what peers wrote is not there.
  void check(std::span<const Buffer> buffers) const;

  // Makes these buffers private: no other process writes to them any more.
  void detach(std::span<const Buffer> buffers);

  // The ranks that are threads of this process, and write to its memory
  // whatever is made private.
  const std::vector<int>& neighbours() const { return neighbours_; }

 private:
  const ControlView control_;
  const std::shared_ptr<Heap> own_;
  std::vector<std::shared_ptr<SharedMapping>> heaps_;  // none, or one a rank
  std::vector<int> neighbours_;
  bool in_reach_ = false;
};

}  // namespace lockstep
