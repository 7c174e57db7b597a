// The last operations of a rank, in memory: the ring notes when each is
// started, waited for and settled.
//
// The ring has fixed entries, each guarded by a sequence lock, so that writers
// never wait or allocate, and a reader sees only whole entries. Recording an
// operation costs some tens of nanoseconds.
//
// Threads: every method may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/operation/operation.h"
#include "src/comm/operation/tick_clock.h"

namespace lockstep {

enum class OperationState : std::uint8_t {
  kStarted = 0,
  kCompleted = 1,
  kFailed = 2,
};

// "started", "completed", "failed".
std::string_view name_of(OperationState state);

// One operation as the ring remembers it.
struct RingEntry {
  using Time = std::chrono::steady_clock::time_point;

  std::uint64_t number = 0;  // counts all operations of the ring from 0
  std::uint32_t group = 0;   // the number passed to begin()
  OperationState state = OperationState::kStarted;
  Signature signature{};
  int peer = 0;  // of messages, as in Operation
  int tag = 0;
  std::string label;  // of a long one beginning and end, kLabelBytes bytes
  Time started{};
  Time ended{};              // once it is settled
  std::uint64_t ticket = 0;  // its Work's, unless it completed at once
  bool awaited = false;      // a thread is, or was, in its wait()
};

class OperationRing {
 public:
  // The number of entries: at least the promised thousand, and a power of two.
  static constexpr std::size_t kEntries = 1024;
  static constexpr std::size_t kLabelBytes = 48;

  // Notes that `operation` of group number `group` starts, overwriting the
  // oldest entry. Returns its number.
  std::uint64_t begin(std::uint32_t group, const Operation& operation);

  // The following change the entry `number`, and do nothing once it has been
  // overwritten.
  void set_ticket(std::uint64_t number, std::uint64_t ticket);
  void set_awaited(std::uint64_t number);
  // Returns whether this call settled it, and not an earlier one.
  bool settle(std::uint64_t number, OperationState state);

  // Its signature; empty once it is settled or overwritten.
  std::optional<Signature> find(std::uint64_t number);

  // How many operations have begun.
  std::uint64_t begun() const { return next_.load(std::memory_order_relaxed); }

  // Every entry that can be read whole, oldest first.
  std::vector<RingEntry> read() const;

 private:
  static constexpr std::size_t kWords = 16;

  // Word 0 is the stamp, see operation_ring.cc.
  struct alignas(128) Slot {
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };
  using Words = std::array<std::uint64_t, kWords>;

  Slot& slot(std::uint64_t number) { return slots_[number % kEntries]; }
  bool holds(std::uint64_t number);
  static std::optional<Words> read(const Slot& slot);
  static RingEntry decode(const Words& words);

  const TickMoment made_{};
  alignas(128) std::atomic<std::uint64_t> next_{0};
  std::array<Slot, kEntries> slots_{};
};

}  // namespace lockstep
