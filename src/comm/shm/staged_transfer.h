// An operation with elements that peers cannot reach: they pass through the
// group's memory, a stretch at a time.
//
// Each stretch is one round: copy this rank's elements in, arrive, copy the
// others' elements out. all_reduce and reduce overlap two stretches: once all
// have arrived with stretch t, a rank takes what was reduced of stretch t - 1,
// reduces its share of stretch t, and copies stretch t + 1 in. Areas alternate
// with the parity of the round, so that a stretch needs only one arrival: a
// rank that has arrived in round r + 1 is done with round r.
//
// Threads: one thread at a time.
#pragma once

#include <vector>

#include "src/comm/shm/shared_operation.h"

namespace lockstep {

class StagedTransfer {
 public:
  // Copies the first stretch in and arrives with it.
  void begin(const SharedOperation& shared, const ShmContext& context);

  // Makes all possible progress; returns whether the operation is complete.
  bool advance(const SharedOperation& shared, const ShmContext& context);

 private:
  // The contents of a rank's area for a stretch: the same for all ranks
  // (all_gather), a slice for each rank (reduce_scatter) or for each other rank
  // (all_to_all), or, when only the root brings elements, the root's elements
  // for that rank (scatter).
  enum class Cut { kNone, kForAll, kForPeers, kRoots };
  void cut(OperationKind kind);

  // A rank's share of a stretch that all reduce together.
  struct Share {
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };
  Share share_of(int rank, std::size_t stretch) const;
  std::size_t bytes_in(std::size_t stretch) const;
  // The area through which rank `from`'s elements for rank `to` pass in round
  // `round`.
  std::byte* area(int from, int to, std::uint64_t round,
                  const ShmContext& context) const;
  void load(const SharedOperation& shared, const ShmContext& context);
  void take(const SharedOperation& shared, const ShmContext& context);
  void reduce_block(const SharedOperation& shared, const ShmContext& context);
  void reduce_share(const SharedOperation& shared, const ShmContext& context);
  void take_reduced(const SharedOperation& shared, const ShmContext& context);

  int ranks_ = 1;
  bool in_two_steps_ = false;  // all_reduce, reduce
  Cut cut_ = Cut::kNone;
  std::size_t longest_ = 0;  // bytes that any rank brings for any other
  std::size_t slice_bytes_ = 0;
  std::size_t stretches_ = 0;
  std::size_t stretch_ = 0;  // the last with which this rank has arrived

  // This rank's positions in what it brings (for each rank, or for all), in
  // what it moves to itself, in what it gets from each, and in its result.
  std::vector<BufferCursor> brings_;
  std::vector<BufferCursor> own_;  // one
  std::vector<BufferCursor> gets_;
  std::vector<BufferCursor>
      result_;  // none or one; of the stretch being reduced
  std::vector<BufferCursor> taken_;  // the same, of the stretch before
  std::vector<const std::byte*> read_;
  std::vector<std::byte*> written_;
};

}  // namespace lockstep
