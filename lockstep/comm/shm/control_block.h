// The memory through which the ranks of a shared-memory group coordinate: its
// layout, and nothing else. docs/design/shm.md tells the protocol and why it
// cannot lose a wake-up.
//
// Threads: plain shared memory; what may be touched when is in the protocol.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/round_up.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

inline constexpr std::size_t kCacheLine = 64;
// Messages up to this size travel in the slot itself, with the flag.
inline constexpr std::size_t kInlineBytes = 16 << 10;
// More than this is reduced where it lies, if peers can reach it: then one rank
// fetches each line once, while through slots every rank fetches all of them.
inline constexpr std::size_t kReducedInlineBytes = 1 << 10;
// What passes through memory of the group at a time where buffers lie outside
// the heap. Each rank has four such areas: two for what it brings and two for
// what it has reduced, by the parity of the round.
inline constexpr std::size_t kStretchBytes = 256 << 10;
inline constexpr std::size_t kStagingBytes = 4 * kStretchBytes;

// Where one buffer of a list lies in its owner's heap.
struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Where what a rank brings to an operation is to be found.
enum class Place : std::uint32_t {
  kInline = 0,  // in the slot
  kHeap = 1,    // in the rank's heap; the slot says where
  kStaged = 2,  // nowhere yet: it comes through the staging areas
};

// What a rank has brought to a round. The flag, the signature and the first
// bytes of the payload share a cache line: a small message is one transfer.
struct alignas(kCacheLine) Slot {
  std::atomic<std::uint64_t> round{0};  // written last, with release
  Signature signature{};
  Place place = Place::kInline;
  std::uint32_t used = 0;  // bytes of the payload
  // For all_to_all_v its counts (see counts_of()) come first; then the elements
  // themselves, or an array of Piece.
  std::byte payload[kInlineBytes];
  // The caller's name for the operation, which is read for an error alone.
  char call_place[AnnouncedCall::kPlaceBytes];
};

// What a rank does in a round whose work is shared.
enum class Part : std::uint32_t { kNone = 0, kAtWork = 1, kDone = 2 };

enum class Presence : std::uint32_t { kPresent = 0, kLeft = 1, kAborted = 2 };

struct alignas(kCacheLine) RankArea {
  // Written once, after what explains it.
  std::atomic<Presence> presence{Presence::kPresent};
  // 1 from the moment at which this rank gives up, before its memory changes:
  // a receiver that copied from this rank's heap and then finds 1 here discards
  // what it copied.
  std::atomic<std::uint32_t> gave_up{0};
  // The part that this rank has in the work of a round: a Part, tagged with the
  // round as the counters of ControlBlock are. Tells others whom a round waits
  // for, and whether this rank may be in the middle of reading or writing the
  // memory of others.
  std::atomic<std::uint64_t> part{0};
  // 1: this rank has the heaps of all ranks mapped. Written once, and only so.
  std::atomic<std::uint32_t> has_all_heaps{0};
  std::int32_t culprit = 0;    // the rank whose failure was the cause, or own
  std::int32_t disagreed = 0;  // 1: because the ranks' calls did not fit
  char reason[2032] = {};      // zero-terminated
  Slot slots[2];               // round r uses slots[r % 2]
};

// The messages from one rank to another: what it announces, what the other
// answers, and a stream for elements that lie in no heap. Counters only grow;
// each is written by one side.
struct Lane {
  static constexpr std::size_t kLetters = 16;
  static constexpr std::size_t kLetterBytes = 1 << 10;
  static constexpr std::size_t kStreamBytes = 128 << 10;

  struct alignas(kCacheLine) Letter {
    Signature signature{};
    std::int32_t tag = 0;
    Place place = Place::kInline;
    Piece piece{};  // kHeap
    std::byte payload[kLetterBytes];
  };
  // Receipts come in any order, each naming its letter by number. For kStaged:
  // "send it now"; for kHeap: "I have it".
  alignas(kCacheLine) std::atomic<std::uint64_t> letters_sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> letters_taken{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> receipts_sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> receipts_taken{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> bytes_sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> bytes_taken{0};
  alignas(kCacheLine) std::uint64_t receipts[kLetters];
  Letter letters[kLetters];
  std::byte stream[kStreamBytes];
};

struct ControlBlock {
  // Waiters sleep on `bell`, a futex; whoever changes something that others
  // may wait for rings it if there are `sleepers`.
  alignas(kCacheLine) std::atomic<std::uint32_t> bell{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> sleepers{0};
  // Work of the current round: how many units were handed out and how many are
  // finished, in the lower 16 bits, with the round's low 48 bits above them, so
  // that a new round starts from zero and no rank resets a counter. (At four
  // million rounds a second 48 bits last for two years.) A rank that gives up
  // sets kEnded: in `claimed` no more units are handed out, in `finished` the
  // round never ends.
  static constexpr int kCountBits = 16;
  static constexpr std::uint32_t kEnded = 1u << 15;
  static constexpr std::uint32_t kMostUnits = kEnded - 1;
  alignas(kCacheLine) std::atomic<std::uint64_t> claimed{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> finished{0};

  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

// A view of the mapped segment: the block, then an area, a staging area and the
// lanes of each rank.
class ControlView {
 public:
  ControlView() = default;
  ControlView(std::byte* base, int ranks)
      : base_(base), ranks_(static_cast<std::size_t>(ranks)) {}

  // Whole pages, so that a group's duplicates can lie one behind the other.
  static std::size_t bytes_for(int ranks) {
    const ControlView view(nullptr, ranks);
    return round_up_to(
        kPage, view.lanes_offset() + view.ranks_ * view.ranks_ * sizeof(Lane));
  }

  ControlBlock& block() const {
    return *reinterpret_cast<ControlBlock*>(base_);
  }
  RankArea& rank(int r) const {
    return reinterpret_cast<RankArea*>(base_ + sizeof(ControlBlock))[r];
  }
  // Where rank `r` puts what it brings to, and has reduced in, a round.
  std::byte* brought(int r, std::uint64_t round) const {
    return staging(r) + (round % 2) * kStretchBytes;
  }
  std::byte* reduced(int r, std::uint64_t round) const {
    return staging(r) + (2 + round % 2) * kStretchBytes;
  }
  // The messages from one rank to another.
  Lane& lane(int from, int to) const {
    return reinterpret_cast<Lane*>(
        base_ + lanes_offset())[static_cast<std::size_t>(from) * ranks_ +
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
  std::size_t lanes_offset() const {
    return staging_offset() + ranks_ * kStagingBytes;
  }

  std::byte* base_ = nullptr;
  std::size_t ranks_ = 0;
};

}  // namespace lockstep
