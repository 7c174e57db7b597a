// An operation whose elements every rank can reach: in the slots, or in mapped
// heaps. Each rank reads its peers' memory and, to reduce in place, writes to
// it.
//
// An operation with all elements in slots needs only the round that brought
// them. Any other is complete when all work on the ranks' memory is finished
// and no rank had given up before: on all ranks or on none.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "src/comm/reduce/reduce_kernels.h"
#include "src/comm/shm/shared_operation.h"

namespace lockstep {

class DirectTransfer {
 public:
  // Carries out an operation whose elements are all inline.
  void finish_inline(SharedOperation& shared, const ShmContext& context);

  // Prepares an operation that is partly in heaps.
  void begin(SharedOperation& shared, const ShmContext& context);

  // Makes all possible progress; returns whether the operation is complete.
  bool advance(const SharedOperation& shared, const ShmContext& context);

  // The ranks that have not done their part.
  std::vector<int> unfinished(const ShmContext& context) const;

 private:
  void reduce_units(const SharedOperation& shared, const ShmContext& context);
  void do_own_part(const SharedOperation& shared, const ShmContext& context);
  void reduce_slots(const SharedOperation& shared, const ShmContext& context);
  void take_from_own_slot(const SharedOperation& shared,
                          const ShmContext& context);
  void move(const SharedOperation& shared);
  void reduce_own_block(const SharedOperation& shared);
  void update_own_pieces(const SharedOperation& shared, Rounds& rounds);
  void update_pieces(const SharedOperation& shared);
  void update_range(const SharedOperation& shared, std::size_t piece,
                    std::size_t begin, std::size_t count);
  void reduce_unit(const SharedOperation& shared, std::uint32_t unit);
  std::uint32_t units(const SharedOperation& shared) const;

  bool shares_work_ = false;    // all_reduce, reduce: any rank may take a unit
  bool own_part_done_ = false;  // this rank has no work left
  std::size_t bytes_ = 0;
  std::size_t unit_bytes_ = 0;
  // starts_[k] is where buffer k begins within the run of all of them; the last
  // entry is where it ends.
  std::vector<std::size_t> starts_;
  // One kernel call's addresses, kept to avoid an allocation per operation.
  std::vector<const std::byte*> read_;
  std::vector<std::byte*> written_;
  std::vector<std::byte> scratch_;
  std::exception_ptr failure_;  // of an update that has begun
};

}  // namespace lockstep
