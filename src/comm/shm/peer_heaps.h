// The heaps of a group's ranks: this rank's own, and the mappings of its
// peers'.
//
// Ranks announce buffers by their place in a heap only once every rank has said
// that it has all heaps mapped. If a rank lacks the address space for them, all
// ranks stage their elements, and no rank reads memory that it cannot reach.
//
// Threads: one thread at a time calls in_reach(); any thread may call the rest.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/comm/memory/heap.h"
#include "src/comm/shm/control_block.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

class PeerHeaps {
 public:
  // `own` is null if this rank has no heap; `descriptors` has the heap of each
  // rank that has one.
  PeerHeaps(ControlView control, int rank, std::shared_ptr<Heap> own,
            const std::vector<FileDescriptor>& descriptors);

  // The same heaps for a duplicate of the group, whose block is `control`.
  PeerHeaps(ControlView control, int rank, const PeerHeaps& same);

  // Whether all ranks have said that they have all heaps mapped. False may
  // become true, but not the reverse.
  bool in_reach();

  // Where this rank's memory lies in its heap; empty if some peers cannot reach
  // it.
  std::optional<Piece> find(const void* address, std::size_t bytes);

  // The local address of a piece of rank `r`'s heap; null if it lies outside.
  std::byte* at(int r, const Piece& piece) const;

  // Null without a heap, or if it is full.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // This rank's, or null.
  std::shared_ptr<Heap> own() const { return own_; }

  // Whether no memory of this rank's heap was made private.
  bool all_shared() const { return !own_ || !own_->has_private_pages(); }

  // Throws if some of the buffers, which lie in this rank's heap, were made
  // private: they lack the peers' writes.
  void check(std::span<const Buffer> buffers) const;

  // Makes these buffers private: no other process writes to them any more.
  void detach(std::span<const Buffer> buffers);

  // The ranks that are threads of this process: they can write to its memory
  // even after it is made private.
  const std::vector<int>& neighbours() const { return neighbours_; }

 private:
  const ControlView control_;
  const std::shared_ptr<Heap> own_;
  std::vector<std::shared_ptr<SharedMapping>> heaps_;  // empty, or one per rank
  std::vector<int> neighbours_;
  bool in_reach_ = false;
};

}  // namespace lockstep
