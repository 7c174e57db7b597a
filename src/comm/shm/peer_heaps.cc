#include "src/comm/shm/peer_heaps.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/net/shared_memory.h"

namespace lockstep {
namespace {

// One mapping per descriptor; empty if one is missing or cannot be mapped.
std::vector<std::shared_ptr<SharedMapping>> map_all(
    const std::vector<FileDescriptor>& descriptors) {
  std::vector<std::shared_ptr<SharedMapping>> heaps;
  try {
    for (const FileDescriptor& heap : descriptors) {
      if (!heap) return {};
      heaps.push_back(map_shared_memory(heap));
    }
  } catch (const SystemError&) {
    return {};  // no address space for them
  }
  return heaps;
}

}  // namespace

PeerHeaps::PeerHeaps(ControlView control, int rank, std::shared_ptr<Heap> own,
                     const std::vector<FileDescriptor>& descriptors)
    : control_(control), own_(std::move(own)) {
  if (own_) heaps_ = map_all(descriptors);
  if (heaps_.empty()) return;
  for (int r = 0; r < static_cast<int>(heaps_.size()); ++r) {
    if (r == rank) continue;
    if (own_->offset_of(heaps_[static_cast<std::size_t>(r)]->data(), 1))
      neighbours_.push_back(r);
  }
  control_.rank(rank).has_all_heaps.store(1);
}

PeerHeaps::PeerHeaps(ControlView control, int rank, const PeerHeaps& same)
    : control_(control),
      own_(same.own_),
      heaps_(same.heaps_),
      neighbours_(same.neighbours_) {
  if (!heaps_.empty()) control_.rank(rank).has_all_heaps.store(1);
}

bool PeerHeaps::in_reach() {
  if (in_reach_ || heaps_.empty()) return in_reach_;
  in_reach_ = true;
  for (int r = 0; r < static_cast<int>(heaps_.size()); ++r)
    in_reach_ = in_reach_ && control_.rank(r).has_all_heaps.load() != 0;
  return in_reach_;
}

std::optional<Piece> PeerHeaps::find(const void* address, std::size_t bytes) {
  if (!in_reach()) return std::nullopt;
  const auto offset = own_->shared_offset_of(address, bytes);
  if (!offset) return std::nullopt;
  return Piece{*offset, bytes};
}

std::byte* PeerHeaps::at(int r, const Piece& piece) const {
  if (heaps_.empty()) return nullptr;
  const SharedMapping& heap = *heaps_[static_cast<std::size_t>(r)];
  if (piece.bytes > heap.size() || piece.offset > heap.size() - piece.bytes)
    return nullptr;
  return heap.data() + piece.offset;
}

std::shared_ptr<std::byte> PeerHeaps::allocate(std::size_t bytes) {
  return own_ ? own_->allocate(bytes) : nullptr;
}

void PeerHeaps::check(std::span<const Buffer> buffers) const {
  for (const Buffer& buffer : buffers)
    if (buffer.count > 0 &&
        !own_->shared_offset_of(buffer.data, buffer.bytes()))
      throw Error(
          "another group of this process failed, and memory that shares a page "
          "with this operation's was made private\n"
          "  next:    make a new group instead of this one too");
}

void PeerHeaps::detach(std::span<const Buffer> buffers) {
  for (const Buffer& buffer : buffers)
    if (buffer.count > 0)
      own_->detach(static_cast<const std::byte*>(buffer.data), buffer.bytes());
}

}  // namespace lockstep
