#include "src/comm/shm/direct_transfer.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "src/base/round_up.h"

namespace lockstep {
namespace {

constexpr std::size_t kLeastUnitBytes = 16 << 10;
constexpr std::size_t kMostUnitBytes = 256 << 10;
// The bytes that are combined and updated at a time: they stay in the
// first-level cache.
constexpr std::size_t kUpdateBytes = 16 << 10;

// A few units for each rank: enough to share the work evenly, few enough that
// claiming them costs nothing, and that their number can be counted.
std::size_t choose_unit_bytes(std::size_t bytes, int ranks) {
  const std::size_t share =
      bytes / (4 * index_of(ranks)) / kCacheLine * kCacheLine;
  const std::size_t least =
      round_up_to(kCacheLine, bytes / ControlBlock::kMostUnits + 1);
  return std::max(least, std::clamp(share, kLeastUnitBytes, kMostUnitBytes));
}

ReduceKernel kernel_of(const SharedOperation& shared) {
  return reduce_kernel(shared.operation().reduction,
                       static_cast<DataType>(shared.signature().type));
}

std::size_t element_size(const SharedOperation& shared) {
  return size_of(static_cast<DataType>(shared.signature().type));
}

}  // namespace

void DirectTransfer::finish_inline(SharedOperation& shared,
                                   const ShmContext& context) {
  if (shared.operation().kind == OperationKind::kBarrier) return;
  if (shared.reduces_whole()) return reduce_slots(shared, context);
  shared.locate(context);
  if (reduces(shared.operation().kind))
    reduce_own_block(shared);
  else
    move(shared);
}

void DirectTransfer::reduce_slots(const SharedOperation& shared,
                                  const ShmContext& context) {
  const ReduceKernel kernel = kernel_of(shared);
  read_.resize(index_of(shared.ranks()));
  std::size_t at = 0;
  for (const Buffer& output : shared.routes().result().buffers) {
    for (int r = 0; r < shared.ranks(); ++r)
      read_[index_of(r)] = context.rounds->brought(r).payload + at;
    std::byte* const to = static_cast<std::byte*>(output.data);
    if (output.count > 0)
      kernel(read_, std::span(&to, 1), static_cast<std::size_t>(output.count));
    at += output.bytes();
  }
}

void DirectTransfer::begin(SharedOperation& shared, const ShmContext& context) {
  shared.locate(context);
  own_part_done_ = false;
  failure_ = nullptr;
  shares_work_ = shared.reduces_whole();
  if (!shares_work_) return;
  starts_.assign(1, 0);
  for (const Buffer& buffer : shared.operation().outputs)
    starts_.push_back(starts_.back() + buffer.bytes());
  bytes_ = starts_.back();
  unit_bytes_ = choose_unit_bytes(bytes_, shared.ranks());
}

// Units are stretches that any rank may reduce, or one unit per rank, which
// means that the rank has read what it needs from its peers' memory.
std::uint32_t DirectTransfer::units(const SharedOperation& shared) const {
  return shares_work_ ? static_cast<std::uint32_t>((bytes_ + unit_bytes_ - 1) /
                                                   unit_bytes_)
                      : static_cast<std::uint32_t>(shared.ranks());
}

bool DirectTransfer::advance(const SharedOperation& shared,
                             const ShmContext& context) {
  if (!own_part_done_) {
    if (shares_work_)
      reduce_units(shared, context);
    else
      do_own_part(shared, context);
    own_part_done_ = true;
  }
  if (!context.rounds->all_finished(units(shared))) return false;
  if (!context.heaps->all_shared())
    context.heaps->check(shared.written_by_peers(context));
  if (shares_work_) take_from_own_slot(shared, context);
  if (shared.updates()) shared.operation().update->carried_out = true;
  return true;
}

// A rank that brought its elements inline, while others have theirs in heaps,
// finds the result in its slot.
void DirectTransfer::take_from_own_slot(const SharedOperation& shared,
                                        const ShmContext& context) {
  const Slot& slot = context.rounds->brought(shared.rank());
  if (slot.place != Place::kInline) return;
  const BufferSpan result = shared.routes().result();
  copy_into(result, 0, {slot.payload, total_bytes(result)});
}

void DirectTransfer::reduce_units(const SharedOperation& shared,
                                  const ShmContext& context) {
  Rounds& rounds = *context.rounds;
  std::uint32_t done = 0;
  std::uint32_t unit = 0;
  rounds.begin_part();
  for (; rounds.claim(units(shared), unit); ++done) reduce_unit(shared, unit);
  if (done > 0) rounds.finish(done, units(shared));
  rounds.end_part();
}

void DirectTransfer::do_own_part(const SharedOperation& shared,
                                 const ShmContext& context) {
  Rounds& rounds = *context.rounds;
  std::uint32_t unit = 0;
  rounds.begin_part();
  // False if a rank has given up: its memory may be in other use by now.
  if (rounds.claim(units(shared), unit)) {
    if (shared.updates())
      update_own_pieces(shared, rounds);
    else if (reduces(shared.operation().kind))
      reduce_own_block(shared);
    else
      move(shared);
    rounds.finish(1, units(shared));
  }
  rounds.end_part();
}

std::vector<int> DirectTransfer::unfinished(const ShmContext& context) const {
  return context.rounds->unfinished(shares_work_ ? Rounds::Work::kAnybodys
                                                 : Rounds::Work::kOwn);
}

void DirectTransfer::move(const SharedOperation& shared) {
  for (int from = 0; from < shared.ranks(); ++from) {
    const BufferSpan to = shared.routes().incoming(from);
    BufferCursor source(shared.outgoing(from, shared.rank()));
    BufferCursor target(to);
    copy(source, target, total_bytes(to));
  }
}

// reduce_scatter: all ranks' elements for this rank have the same pieces.
void DirectTransfer::reduce_own_block(const SharedOperation& shared) {
  const ReduceKernel kernel = kernel_of(shared);
  std::vector<BufferCursor> sources;
  for (int r = 0; r < shared.ranks(); ++r)
    sources.emplace_back(shared.outgoing(r, shared.rank()));
  read_.resize(sources.size());
  for (BufferCursor target(shared.routes().result()); target.left() > 0;) {
    for (std::size_t r = 0; r < read_.size(); ++r) read_[r] = sources[r].here();
    std::byte* const to = target.here();
    const std::size_t bytes = target.left();
    kernel(read_, std::span(&to, 1), bytes / element_size(shared));
    for (BufferCursor& source : sources) source.advance(bytes);
    target.advance(bytes);
  }
}

// The next thread that advances must not repeat half an update.
void DirectTransfer::update_own_pieces(const SharedOperation& shared,
                                       Rounds& rounds) {
  try {
    if (failure_) std::rethrow_exception(failure_);
    update_pieces(shared);
  } catch (...) {
    failure_ = std::current_exception();
    rounds.end_part();  // this rank writes no more to peers' memory
    throw;
  }
}

void DirectTransfer::update_pieces(const SharedOperation& shared) {
  const auto pieces = shared.operation().update->pieces();
  const std::size_t most = kUpdateBytes / element_size(shared);
  scratch_.resize(kUpdateBytes);
  for (std::size_t piece = 0; piece < pieces.size(); ++piece)
    for (std::size_t at = 0; at < pieces[piece].count; at += most)
      update_range(shared, piece, at, std::min(most, pieces[piece].count - at));
}

void DirectTransfer::update_range(const SharedOperation& shared,
                                  std::size_t piece, std::size_t begin,
                                  std::size_t count) {
  const Operation& operation = shared.operation();
  const ShardUpdate::Piece& of = operation.update->pieces()[piece];
  const std::size_t element = element_size(shared);
  const std::size_t from = (of.begin + begin) * element;
  const auto address = [&](int r, std::size_t buffer) {
    const Buffer& whole = shared.source_of(r).at(buffer);
    LOCKSTEP_CHECK(from + count * element <= whole.bytes(),
                   "a shard update has a piece outside of its buffer");
    return static_cast<std::byte*>(whole.data) + from;
  };
  read_.resize(index_of(shared.ranks()));
  for (int r = 0; r < shared.ranks(); ++r)
    read_[index_of(r)] = address(r, of.buffer);
  std::byte* const combined = scratch_.data();
  kernel_of(shared)(read_, std::span(&combined, 1), count);
  operation.update->update(piece, begin, count, combined);
  const std::size_t parameter = operation.inputs.size() + of.buffer;
  const std::byte* const updated = address(shared.rank(), parameter);
  for (int r = 0; r < shared.ranks(); ++r)
    if (r != shared.rank())
      std::memcpy(address(r, parameter), updated, count * element);
}

void DirectTransfer::reduce_unit(const SharedOperation& shared,
                                 std::uint32_t unit) {
  const std::size_t from = unit * unit_bytes_;
  const std::size_t to = std::min(from + unit_bytes_, bytes_);
  const ReduceKernel kernel = kernel_of(shared);
  const bool to_all = shared.operation().kind == OperationKind::kAllReduce;
  read_.resize(index_of(shared.ranks()));
  written_.resize(to_all ? read_.size() : 1);
  auto piece = static_cast<std::size_t>(
      std::ranges::upper_bound(starts_, from) - starts_.begin() - 1);
  for (std::size_t at = from; at < to; ++piece) {
    const std::size_t end = std::min(to, starts_[piece + 1]);
    if (end <= at) continue;
    const auto address = [&](int r) {
      return static_cast<std::byte*>(shared.source_of(r)[piece].data) +
             (at - starts_[piece]);
    };
    for (int r = 0; r < shared.ranks(); ++r) read_[index_of(r)] = address(r);
    if (!to_all) written_[0] = address(shared.operation().root);
    for (int r = 0; to_all && r < shared.ranks(); ++r)
      written_[index_of(r)] = address(r);
    kernel(read_, written_, (end - at) / element_size(shared));
    at = end;
  }
}

}  // namespace lockstep
