// An operation on its way through a shared-memory group: a small state machine
// that goes as far as it can and never blocks.
//
//   inline   up to kInlineBytes: everybody's data is in the slots; one round
//   mapped   all buffers of all ranks lie in heaps: the first round tells
//   where,
//            its work units do the rest
//   staged   otherwise: after that first round, a round for each stretch that
//            fits the staging areas: copy in, work, copy out
//
// Threads: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/backend.h"
#include "lockstep/comm/heap.h"
#include "lockstep/comm/operation.h"
#include "lockstep/comm/shm/reduce_kernels.h"
#include "lockstep/comm/shm/rounds.h"

namespace lockstep {

// What the operations of a group work with.
struct ShmContext {
  GroupIdentity identity;
  ControlView control;
  Rounds* rounds = nullptr;
  std::shared_ptr<Heap> heap;  // null: everything is staged
  // Where each rank's heap is mapped here; empty when some rank has none.
  std::vector<std::shared_ptr<SharedMapping>> peer_heaps;
};

class Flight {
 public:
  // Takes over the operation's lists; the memory they point to stays the
  // caller's.
  void begin(const Operation& operation);

  // Goes as far as possible; returns whether the operation is complete. Throws
  // Mismatch when the ranks disagree.
  bool advance(ShmContext& context);

  // The ranks that have not arrived.
  std::vector<int> missing(const ShmContext& context) const;

  const Operation& operation() const { return operation_; }
  Deadline deadline() const { return deadline_; }
  Deadline::Clock::time_point begun() const { return begun_; }

 private:
  enum class Step { kQueued, kInline, kProbing, kStaging, kWorking };

  std::span<const Buffer> sources() const {
    return operation_.inputs.empty() ? operation_.outputs : operation_.inputs;
  }
  void publish(ShmContext& context);
  void publish_pieces(const ShmContext& context, Slot& slot);
  void check_signatures(const ShmContext& context) const;
  void check_pieces(const ShmContext& context) const;
  void finish_inline(const ShmContext& context);
  bool all_in_heaps(const ShmContext& context) const;
  void map_pieces(const ShmContext& context);
  void publish_stretch(ShmContext& context);
  void work(ShmContext& context);
  void reduce_unit(const ShmContext& context, std::uint32_t unit);
  void gather_own(const ShmContext& context);
  std::uint32_t units(const ShmContext& context) const;
  void unload_stretch(const ShmContext& context);

  Operation operation_;
  std::vector<Buffer> inputs_;
  std::vector<Buffer> outputs_;
  std::string place_;
  Deadline::Clock::time_point begun_;
  Deadline deadline_ = Deadline::never();
  Signature signature_;
  std::size_t bytes_ = 0;  // of sources()

  Step step_ = Step::kQueued;
  bool staged_ = false;
  bool gathered_ = false;   // this rank's part of a broadcast or all_gather
  std::size_t begin_ = 0;   // the stretch that the current round is about,
  std::size_t length_ = 0;  // within the run of all bytes
  std::size_t unit_bytes_ = 0;

  // Where the current stretch lies: starts_[k] is where piece k begins within
  // it (with the end as last entry), bases_[r][k] the address of rank r's.
  std::vector<std::size_t> starts_;
  std::vector<std::vector<std::byte*>> bases_;
  // One kernel call's addresses, kept to allocate nothing an operation.
  std::vector<const std::byte*> read_;
  std::vector<std::byte*> written_;
};

}  // namespace lockstep
