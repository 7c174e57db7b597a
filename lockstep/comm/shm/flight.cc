#include "lockstep/comm/shm/flight.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/comm/buffer_run.h"

namespace lockstep {
namespace {

constexpr std::size_t kLeastUnitBytes = 16 << 10;
constexpr std::size_t kMostUnitBytes = 256 << 10;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// A few units for each rank: enough to share the work evenly, few enough that
// claiming them costs nothing.
std::size_t choose_unit_bytes(std::size_t bytes, int ranks) {
  const std::size_t share =
      bytes / (4 * index(ranks)) / kCacheLine * kCacheLine;
  return std::clamp(share, kLeastUnitBytes, kMostUnitBytes);
}

}  // namespace

void Flight::begin(const Operation& operation) {
  inputs_.assign(operation.inputs.begin(), operation.inputs.end());
  outputs_.assign(operation.outputs.begin(), operation.outputs.end());
  place_.assign(operation.place);
  operation_ = operation;
  operation_.inputs = inputs_;
  operation_.outputs = outputs_;
  operation_.place = place_;
  begun_ = Deadline::Clock::now();
  deadline_ = Deadline(operation.timeout);
  signature_ = signature_of(operation_);
  bytes_ = total_bytes({sources()});
  step_ = Step::kQueued;
  staged_ = false;
  begin_ = 0;
}

bool Flight::advance(ShmContext& context) {
  if (step_ == Step::kQueued) publish(context);
  while (true) {
    if (step_ == Step::kWorking) {
      work(context);
      if (!context.rounds->all_finished(units(context))) return false;
      if (staged_) unload_stretch(context);
      begin_ += length_;
      if (begin_ == bytes_) return true;
      publish_stretch(context);
    }
    if (!context.rounds->all_arrived()) return false;
    check_signatures(context);
    if (step_ == Step::kInline) {
      finish_inline(context);
      return true;
    }
    if (step_ == Step::kProbing && all_in_heaps(context)) {
      check_pieces(context);
      map_pieces(context);
    } else if (step_ == Step::kProbing) {
      staged_ = true;
      publish_stretch(context);
      continue;
    }
    gathered_ = false;
    step_ = Step::kWorking;
  }
}

std::vector<int> Flight::missing(const ShmContext& context) const {
  if (step_ == Step::kQueued) return {};
  return context.rounds->missing();
}

void Flight::publish(ShmContext& context) {
  Slot& slot = context.rounds->next_slot();
  slot.signature = signature_;
  const bool contributes = operation_.kind != OperationKind::kBroadcast ||
                           operation_.root == context.identity.rank;
  if (bytes_ <= kInlineBytes) {
    if (contributes) copy_from({sources()}, 0, std::span(slot.payload, bytes_));
    step_ = Step::kInline;
  } else {
    publish_pieces(context, slot);
    step_ = Step::kProbing;
  }
  context.rounds->arrive();
}

void Flight::publish_pieces(const ShmContext& context, Slot& slot) {
  slot.pieces = Slot::kNotInHeap;
  if (context.peer_heaps.empty() || sources().size() > kMaxPieces) return;
  std::size_t count = 0;
  for (const Buffer& buffer : sources()) {
    const auto offset = context.heap->offset_of(buffer.data, buffer.bytes());
    if (!offset && buffer.count > 0) return;
    const Piece piece{offset.value_or(0), buffer.bytes()};
    std::memcpy(slot.payload + count++ * sizeof piece, &piece, sizeof piece);
  }
  slot.pieces = static_cast<std::uint32_t>(count);
}

void Flight::check_signatures(const ShmContext& context) const {
  bool equal = true;
  for (int r = 0; r < context.identity.size; ++r)
    equal = equal && context.rounds->brought(r).signature == signature_;
  if (equal) return;
  std::vector<Signature> signatures;
  for (int r = 0; r < context.identity.size; ++r)
    signatures.push_back(context.rounds->brought(r).signature);
  throw Mismatch(describe_mismatch(signatures, context.identity.rank,
                                   context.identity.name));
}

// Signatures hold a hash of the counts; before writing to a peer's memory we
// want certainty.
void Flight::check_pieces(const ShmContext& context) const {
  for (int r = 0; r < context.identity.size; ++r)
    for (std::size_t k = 0; k < sources().size(); ++k) {
      Piece piece;
      std::memcpy(&piece, context.rounds->brought(r).payload + k * sizeof piece,
                  sizeof piece);
      const std::size_t heap_bytes = context.peer_heaps[index(r)]->size();
      if (piece.bytes != sources()[k].bytes() || piece.bytes > heap_bytes ||
          piece.offset > heap_bytes - piece.bytes)
        throw Mismatch("buffer " + std::to_string(k) + " of " +
                       describe(operation_) + " has another size on rank " +
                       std::to_string(r));
    }
}

void Flight::finish_inline(const ShmContext& context) {
  const int ranks = context.identity.size;
  const auto payload = [&](int r) {
    return std::span<const std::byte>(context.rounds->brought(r).payload,
                                      bytes_);
  };
  switch (operation_.kind) {
    case OperationKind::kBarrier:
      return;
    case OperationKind::kBroadcast:
      if (operation_.root != context.identity.rank)
        copy_into({outputs_}, 0, payload(operation_.root));
      return;
    case OperationKind::kAllGather:
      for (int r = 0; r < ranks; ++r)
        copy_into({outputs_, index(r), index(ranks)}, 0, payload(r));
      return;
    default:
      break;
  }
  if (bytes_ == 0) return;
  const DataType type = outputs_.front().type;
  read_.resize(index(ranks));
  std::size_t at = 0;
  for (const Buffer& output : outputs_) {
    for (int r = 0; r < ranks; ++r) read_[index(r)] = payload(r).data() + at;
    std::byte* const to = static_cast<std::byte*>(output.data);
    reduce_kernel(operation_.reduction, type)(
        read_, std::span(&to, 1), static_cast<std::size_t>(output.count));
    at += output.bytes();
  }
}

bool Flight::all_in_heaps(const ShmContext& context) const {
  for (int r = 0; r < context.identity.size; ++r)
    if (context.rounds->brought(r).pieces == Slot::kNotInHeap) return false;
  return true;
}

void Flight::map_pieces(const ShmContext& context) {
  begin_ = 0;
  length_ = bytes_;
  unit_bytes_ = choose_unit_bytes(length_, context.identity.size);
  starts_.assign(1, 0);
  for (const Buffer& buffer : sources())
    starts_.push_back(starts_.back() + buffer.bytes());
  bases_.resize(index(context.identity.size));
  for (int r = 0; r < context.identity.size; ++r) {
    auto& bases = bases_[index(r)];
    bases.clear();
    for (std::size_t k = 0; k < sources().size(); ++k) {
      Piece piece;
      std::memcpy(&piece, context.rounds->brought(r).payload + k * sizeof piece,
                  sizeof piece);
      bases.push_back(context.peer_heaps[index(r)]->data() + piece.offset);
    }
  }
}

void Flight::publish_stretch(ShmContext& context) {
  const int rank = context.identity.rank;
  length_ = std::min(kStagingBytes, bytes_ - begin_);
  unit_bytes_ = choose_unit_bytes(length_, context.identity.size);
  starts_.assign({0, length_});
  bases_.resize(index(context.identity.size));
  for (int r = 0; r < context.identity.size; ++r)
    bases_[index(r)].assign(1, context.control.staging(r));
  if (operation_.kind != OperationKind::kBroadcast || operation_.root == rank)
    copy_from({sources()}, begin_,
              std::span(context.control.staging(rank), length_));
  Slot& slot = context.rounds->next_slot();
  slot.signature = signature_;
  slot.pieces = Slot::kNotInHeap;
  step_ = Step::kStaging;
  context.rounds->arrive();
}

// Units of an all_reduce are stretches that anyone may reduce; of the others,
// one a rank: that it has read what it needs of its peers' memory.
std::uint32_t Flight::units(const ShmContext& context) const {
  if (operation_.kind != OperationKind::kAllReduce)
    return static_cast<std::uint32_t>(context.identity.size);
  return static_cast<std::uint32_t>((length_ + unit_bytes_ - 1) / unit_bytes_);
}

void Flight::work(ShmContext& context) {
  if (operation_.kind == OperationKind::kAllReduce) {
    std::uint32_t unit = 0;
    std::uint32_t done = 0;
    while (context.rounds->claim(units(context), unit)) {
      reduce_unit(context, unit);
      ++done;
    }
    if (done > 0) context.rounds->finish(done);
  } else if (!gathered_) {
    gather_own(context);
    gathered_ = true;
    context.rounds->finish(1);
  }
}

void Flight::reduce_unit(const ShmContext& context, std::uint32_t unit) {
  const std::size_t from = unit * unit_bytes_;
  const std::size_t to = std::min(from + unit_bytes_, length_);
  const DataType type = outputs_.front().type;
  const ReduceKernel kernel = reduce_kernel(operation_.reduction, type);
  read_.resize(index(context.identity.size));
  written_.resize(read_.size());
  auto piece = static_cast<std::size_t>(
      std::ranges::upper_bound(starts_, from) - starts_.begin() - 1);
  for (std::size_t at = from; at < to; ++piece) {
    const std::size_t end = std::min(to, starts_[piece + 1]);
    if (end <= at) continue;
    for (std::size_t r = 0; r < read_.size(); ++r) {
      written_[r] = bases_[r][piece] + (at - starts_[piece]);
      read_[r] = written_[r];
    }
    kernel(read_, written_, (end - at) / size_of(type));
    at = end;
  }
}

void Flight::gather_own(const ShmContext& context) {
  const bool gathers = operation_.kind == OperationKind::kAllGather;
  const std::size_t ranks = index(context.identity.size);
  for (std::size_t r = 0; r < ranks; ++r) {
    if (!gathers && r != index(operation_.root)) continue;
    if (!gathers && r == index(context.identity.rank)) continue;
    for (std::size_t k = 0; k + 1 < starts_.size(); ++k)
      copy_into(gathers ? Run{outputs_, r, ranks} : Run{outputs_},
                begin_ + starts_[k],
                {bases_[r][k], starts_[k + 1] - starts_[k]});
  }
}

void Flight::unload_stretch(const ShmContext& context) {
  if (operation_.kind != OperationKind::kAllReduce) return;
  copy_into({outputs_}, begin_,
            std::span<const std::byte>(
                context.control.staging(context.identity.rank), length_));
}

}  // namespace lockstep
