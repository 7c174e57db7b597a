#include "src/comm/shm/staged_transfer.h"

#include <algorithm>

#include "src/base/round_up.h"
#include "src/comm/reduce/reduce_kernels.h"

namespace lockstep {
namespace {

std::size_t element_size(const SharedOperation& shared) {
  return size_of(static_cast<DataType>(shared.signature().type));
}

ReduceKernel kernel_of(const SharedOperation& shared) {
  return reduce_kernel(shared.operation().reduction,
                       static_cast<DataType>(shared.signature().type));
}

// The remaining bytes of the run that `cursor` is in, at most `most`.
std::size_t bytes_left(BufferCursor cursor, std::size_t most) {
  std::size_t bytes = 0;
  while (bytes < most && cursor.left() > 0) {
    bytes += cursor.left();
    cursor.advance(cursor.left());
  }
  return std::min(bytes, most);
}

// Moves `bytes` bytes, or the rest of `cursor`, between it and `memory`.
void store(BufferCursor& cursor, std::byte* memory, std::size_t bytes) {
  const Buffer buffer = view_bytes({memory, bytes});
  BufferCursor to(BufferSpan{Buffers(buffer)});
  copy(cursor, to, bytes_left(cursor, bytes));
}
void fetch(const std::byte* memory, BufferCursor& cursor, std::size_t bytes) {
  const Buffer buffer = view_bytes({memory, bytes});
  BufferCursor from(BufferSpan{Buffers(buffer)});
  copy(from, cursor, bytes_left(cursor, bytes));
}

}  // namespace

void StagedTransfer::begin(const SharedOperation& shared,
                           const ShmContext& context) {
  ranks_ = shared.ranks();
  in_two_steps_ = shared.reduces_whole();
  cut(shared.operation().kind);
  longest_ = shared.longest_route();
  stretches_ =
      std::max<std::size_t>(1, (longest_ + slice_bytes_ - 1) / slice_bytes_);
  stretch_ = 0;
  const Routes routes = shared.routes();
  const int rank = shared.rank();
  brings_.clear();
  gets_.clear();
  for (int r = 0; r < ranks_; ++r) {
    const bool passes = cut_ == Cut::kForAll || r != rank;
    if (cut_ != Cut::kNone)
      brings_.emplace_back(passes ? routes.outgoing(r) : BufferSpan{});
    gets_.emplace_back(routes.incoming(r));
  }
  const Operation& operation = shared.operation();
  const bool keeps_all =
      operation.kind == OperationKind::kGather && operation.root == rank;
  if (cut_ == Cut::kNone)
    brings_.emplace_back(keeps_all ? BufferSpan{}
                                   : BufferSpan{routes.source()});
  result_.assign(1, BufferCursor(routes.result()));
  taken_ = result_;
  own_.assign(1, BufferCursor(routes.outgoing(rank)));
  load(shared, context);
}

void StagedTransfer::cut(OperationKind kind) {
  std::size_t slices = 1;
  cut_ = Cut::kNone;
  if (kind == OperationKind::kScatter) cut_ = Cut::kRoots;
  if (kind == OperationKind::kReduceScatter) {
    cut_ = Cut::kForAll;
    slices = index_of(ranks_);
  }
  if (kind == OperationKind::kAllToAll) {
    cut_ = Cut::kForPeers;
    slices = std::max<std::size_t>(1, index_of(ranks_) - 1);
  }
  slice_bytes_ = kStretchBytes / slices / kCacheLine * kCacheLine;
}

std::byte* StagedTransfer::area(int from, int to, std::uint64_t round,
                                const ShmContext& context) const {
  const auto slice = [&](int i) {
    return context.control.brought(from, round) + index_of(i) * slice_bytes_;
  };
  switch (cut_) {
    case Cut::kNone:
      return slice(0);
    case Cut::kForAll:
      return slice(to);
    case Cut::kForPeers:  // the ranks after `from`, in order
      return slice((to - from - 1 + ranks_) % ranks_);
    case Cut::kRoots:
      return context.control.brought(to, round);
  }
  return nullptr;
}

bool StagedTransfer::advance(const SharedOperation& shared,
                             const ShmContext& context) {
  while (context.rounds->all_arrived()) {
    if (in_two_steps_) {
      if (stretch_ > 0) take_reduced(shared, context);
      if (stretch_ < stretches_) reduce_share(shared, context);
    } else if (reduces(shared.operation().kind)) {
      reduce_block(shared, context);
    } else {
      take(shared, context);
    }
    ++stretch_;
    if (stretch_ == stretches_ + (in_two_steps_ ? 1 : 0)) return true;
    load(shared, context);
  }
  return false;
}

void StagedTransfer::load(const SharedOperation& shared,
                          const ShmContext& context) {
  const std::uint64_t round = context.rounds->current() + 1;
  if (stretch_ < stretches_)
    for (std::size_t i = 0; i < brings_.size(); ++i)
      store(brings_[i],
            area(shared.rank(), static_cast<int>(i), round, context),
            slice_bytes_);
  Slot& slot = context.rounds->next_slot();
  slot.signature = shared.signature();
  context.rounds->arrive();
}

void StagedTransfer::take(const SharedOperation& shared,
                          const ShmContext& context) {
  const int rank = shared.rank();
  for (int from = 0; from < ranks_; ++from) {
    BufferCursor& to = gets_[index_of(from)];
    if (from == rank)
      copy(own_.front(), to, bytes_left(to, slice_bytes_));
    else
      fetch(area(from, rank, context.rounds->current(), context), to,
            slice_bytes_);
  }
}

// reduce_scatter: reduces this rank's slice of all ranks' elements.
void StagedTransfer::reduce_block(const SharedOperation& shared,
                                  const ShmContext& context) {
  const ReduceKernel kernel = kernel_of(shared);
  read_.resize(index_of(ranks_));
  BufferCursor& result = result_.front();
  for (std::size_t at = 0; at < slice_bytes_ && result.left() > 0;) {
    const std::size_t bytes = std::min(slice_bytes_ - at, result.left());
    for (int r = 0; r < ranks_; ++r)
      read_[index_of(r)] =
          area(r, shared.rank(), context.rounds->current(), context) + at;
    std::byte* const to = result.here();
    kernel(read_, std::span(&to, 1), bytes / element_size(shared));
    result.advance(bytes);
    at += bytes;
  }
}

std::size_t StagedTransfer::bytes_in(std::size_t stretch) const {
  return std::min(slice_bytes_, longest_ - stretch * slice_bytes_);
}

StagedTransfer::Share StagedTransfer::share_of(int rank,
                                               std::size_t stretch) const {
  const std::size_t bytes = bytes_in(stretch);
  const std::size_t each =
      round_up_to(kCacheLine, (bytes - 1) / index_of(ranks_) + 1);
  const std::size_t begin = std::min(bytes, index_of(rank) * each);
  return {begin, std::min(each, bytes - begin)};
}

// Reduces this rank's share into the area where the others find it and, if this
// rank gets the result, also into that.
void StagedTransfer::reduce_share(const SharedOperation& shared,
                                  const ShmContext& context) {
  const std::uint64_t round = context.rounds->current();
  const ReduceKernel kernel = kernel_of(shared);
  const Share share = share_of(shared.rank(), stretch_);
  BufferCursor result = result_.front();
  result.advance(share.begin);
  const bool wanted = result_.front().left() > 0;
  read_.resize(index_of(ranks_));
  written_.resize(wanted ? 2 : 1);
  for (std::size_t at = 0; at < share.bytes;) {
    std::size_t bytes = share.bytes - at;
    if (wanted) {
      bytes = std::min(bytes, result.left());
      written_[1] = result.here();
      result.advance(bytes);
    }
    for (int r = 0; r < ranks_; ++r)
      read_[index_of(r)] = context.control.brought(r, round) + share.begin + at;
    written_[0] =
        context.control.reduced(shared.rank(), round) + share.begin + at;
    kernel(read_, written_, bytes / element_size(shared));
    at += bytes;
  }
  if (wanted) result_.front().advance(bytes_in(stretch_));
}

void StagedTransfer::take_reduced(const SharedOperation& shared,
                                  const ShmContext& context) {
  BufferCursor& taken = taken_.front();
  if (taken.left() == 0) return;
  for (int r = 0; r < ranks_; ++r) {
    const Share share = share_of(r, stretch_ - 1);
    if (r == shared.rank())
      taken.advance(share.bytes);
    else
      fetch(context.control.reduced(r, context.rounds->current() - 1) +
                share.begin,
            taken, share.bytes);
  }
}

}  // namespace lockstep
