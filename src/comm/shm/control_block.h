// The layout of the memory through which the ranks of a shared-memory group
// coordinate. docs/design/shm.md explains the protocol and why it cannot lose a
// wake-up.
//
// Threads: plain shared memory; the protocol says which rank may access what
//          when.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/base/round_up.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

inline constexpr std::size_t kCacheLine = 64;
// Messages up to this size travel in the slot itself, with the flag.
inline constexpr std::size_t kInlineBytes = 16 << 10;
// Larger buffers are reduced in place, if peers can reach them: then one rank
// fetches each cache line once, while through slots every rank fetches all of
// them.
inline constexpr std::size_t kReducedInlineBytes = 1 << 10;
// The bytes that pass through the group's memory at a time when buffers lie
// outside the heap. Each rank has four such areas: two for what it brings and
// two for what it has reduced, selected by the parity of the round.
inline constexpr std::size_t kStretchBytes = 256 << 10;
inline constexpr std::size_t kStagingBytes = 4 * kStretchBytes;

// Where one buffer of a list lies in its owner's heap.
struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Where a rank's elements for an operation are.
enum class Place : std::uint32_t {
  kInline = 0,  // in the slot
  kHeap = 1,    // in the rank's heap; the slot says where
  kStaged = 2,  // not yet available: they come through the staging areas
};

// A rank's contribution to a round. The flag, the signature and the first bytes
// of the payload share a cache line: a small message is one transfer.
struct alignas(kCacheLine) Slot {
  std::atomic<std::uint64_t> round{0};  // written last, with release
  Signature signature{};
  Place place = Place::kInline;
  std::uint32_t used = 0;  // bytes of the payload
  // For all_to_all_v the counts (see counts_of()) come first; then the elements
  // themselves, or an array of Piece.
  std::byte payload[kInlineBytes];
  // The caller's name for the operation, which only error messages use.
  char call_label[AnnouncedCall::kLabelBytes];
};

// A rank's state in a round whose work is shared.
enum class Part : std::uint32_t { kNone = 0, kAtWork = 1, kDone = 2 };

enum class Presence : std::uint32_t { kPresent = 0, kLeft = 1, kAborted = 2 };

struct alignas(kCacheLine) RankArea {
  // Written once, after the fields that explain it.
  std::atomic<Presence> presence{Presence::kPresent};
  // 1 from the moment at which this rank gives up, before its memory changes: a
  // receiver that copied from this rank's heap and then finds 1 here discards
  // the copy.
  std::atomic<std::uint32_t> gave_up{0};
  // This rank's part in the work of a round: a Part, tagged with the round like
  // the counters of ControlBlock. It tells other ranks which ranks a round
  // waits for, and whether this rank may be reading or writing the memory of
  // others.
  std::atomic<std::uint64_t> part{0};
  // 1: this rank has the heaps of all ranks mapped. Written once; 1 is the only
  // value written.
  std::atomic<std::uint32_t> has_all_heaps{0};
  // What this rank waits for (see announced_wait.cc), and when it last said so,
  // in nanoseconds of the steady clock, which all processes of a host share.
  std::atomic<std::uint32_t> awaits{0};
  std::atomic<std::int64_t> awaited_at{0};
  std::int32_t culprit = 0;    // the rank whose failure was the cause, or this
  std::int32_t disagreed = 0;  // 1: because the ranks' calls did not match
  char reason[2032] = {};      // zero-terminated
  Slot slots[2];               // round r uses slots[r % 2]
};

// The messages from one rank to another: the sender's announcements, the
// receiver's answers, and a stream for elements outside the heaps. Counters
// only grow; each is written by one side.
struct MessageChannel {
  static constexpr std::size_t kEnvelopes = 16;
  static constexpr std::size_t kEnvelopeBytes = 1 << 10;
  static constexpr std::size_t kStreamBytes = 128 << 10;

  struct alignas(kCacheLine) Envelope {
    Signature signature{};
    std::int32_t tag = 0;
    Place place = Place::kInline;
    Piece piece{};  // kHeap
    std::byte payload[kEnvelopeBytes];
  };
  // Receipts come in any order and name their envelope by number. For kStaged a
  // receipt means "send it now", for kHeap "I have copied it".
  alignas(kCacheLine) std::atomic<std::uint64_t> envelopes_sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> envelopes_taken{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> receipts_sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> receipts_taken{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> bytes_sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> bytes_taken{0};
  alignas(kCacheLine) std::uint64_t receipts[kEnvelopes];
  Envelope envelopes[kEnvelopes];
  std::byte stream[kStreamBytes];
};

struct ControlBlock {
  // Waiters sleep on `bell`, a futex; a thread that changes state that others
  // may wait for rings it if there are `sleepers`.
  alignas(kCacheLine) std::atomic<std::uint32_t> bell{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> sleepers{0};
  // Work of the current round: the lower 16 bits count the units that were
  // claimed and finished; the round's low 48 bits stand above them, so that a
  // new round starts from zero and no rank resets a counter. (At four million
  // rounds per second 48 bits last for two years.) A rank that gives up sets
  // kEnded: in `claimed`, no more units can be claimed; in `finished`, the
  // round never ends.
  static constexpr int kCountBits = 16;
  static constexpr std::uint32_t kEnded = 1u << 15;
  static constexpr std::uint32_t kMostUnits = kEnded - 1;
  alignas(kCacheLine) std::atomic<std::uint64_t> claimed{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> finished{0};

  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

// A view of the mapped segment: the block, then an area, a staging area and the
// channels of each rank.
class ControlView {
 public:
  ControlView() = default;
  ControlView(std::byte* base, int ranks)
      : base_(base), ranks_(static_cast<std::size_t>(ranks)) {}

  // Whole pages, so that a group's duplicates can follow each other.
  static std::size_t bytes_for(int ranks) {
    const ControlView view(nullptr, ranks);
    return round_up_to(kPage,
                       view.channels_offset() +
                           view.ranks_ * view.ranks_ * sizeof(MessageChannel));
  }

  ControlBlock& block() const {
    return *reinterpret_cast<ControlBlock*>(base_);
  }
  RankArea& rank(int r) const {
    return reinterpret_cast<RankArea*>(base_ + sizeof(ControlBlock))[r];
  }
  // Rank `r`'s areas for what it brings to a round and what it has reduced in
  // it.
  std::byte* brought(int r, std::uint64_t round) const {
    return staging(r) + (round % 2) * kStretchBytes;
  }
  std::byte* reduced(int r, std::uint64_t round) const {
    return staging(r) + (2 + round % 2) * kStretchBytes;
  }
  // The messages from one rank to another.
  MessageChannel& channel(int from, int to) const {
    return reinterpret_cast<MessageChannel*>(
        base_ + channels_offset())[static_cast<std::size_t>(from) * ranks_ +
                                   static_cast<std::size_t>(to)];
  }

 private:
  static constexpr std::size_t kPage = 4096;

  std::byte* staging(int r) const {
    return base_ + staging_offset() +
           static_cast<std::size_t>(r) * kStagingBytes;
  }
  std::size_t staging_offset() const {
    const std::size_t end = sizeof(ControlBlock) + ranks_ * sizeof(RankArea);
    return round_up_to(kPage, end);
  }
  std::size_t channels_offset() const {
    return staging_offset() + ranks_ * kStagingBytes;
  }

  std::byte* base_ = nullptr;
  std::size_t ranks_ = 0;
};

}  // namespace lockstep
