#include "src/comm/shm/shared_operation.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"
#include "src/comm/operation/operation_text.h"

namespace lockstep {
namespace {

template <class T>
std::size_t size_in_bytes(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

}  // namespace

void SharedOperation::begin(const Operation& operation,
                            const GroupIdentity& identity) {
  const Signature signature = signature_of(operation);
  inputs_.assign(operation.inputs.begin(), operation.inputs.end());
  outputs_.assign(operation.outputs.begin(), operation.outputs.end());
  label_.assign(operation.label);
  operation_ = operation;
  operation_.inputs = inputs_;
  operation_.outputs = outputs_;
  operation_.label = label_;
  signature_ = signature;
  rank_ = identity.rank;
  ranks_ = identity.size;
  counts_ = counts_of(operation_);
  bytes_ = total_bytes({routes().source()});
  both_.clear();
  if (!updates()) return;
  both_ = inputs_;
  both_.insert(both_.end(), outputs_.begin(), outputs_.end());
}

std::span<const Buffer> SharedOperation::told() const {
  return updates() ? std::span<const Buffer>(both_) : routes().source();
}

void SharedOperation::publish(const ShmContext& context, Slot& slot) const {
  slot.signature = signature_;
  set_label(slot.call_label, operation_.label);
  const std::size_t table = size_in_bytes(counts_);
  LOCKSTEP_CHECK(table <= kInlineBytes, "too many ranks for all_to_all_v");
  if (table > 0) std::memcpy(slot.payload, counts_.data(), table);
  if (table + bytes_ > kInlineBytes || updates())
    return publish_pieces(context, slot);
  if (reduces_whole() && bytes_ > kReducedInlineBytes) {
    publish_pieces(context, slot);
    if (slot.place == Place::kHeap) return;
  }
  slot.place = Place::kInline;
  slot.used = static_cast<std::uint32_t>(table + bytes_);
  if (bytes_ > 0)
    copy_from({routes().source()}, 0, {slot.payload + table, bytes_});
}

void SharedOperation::publish_pieces(const ShmContext& context,
                                     Slot& slot) const {
  slot.place = Place::kStaged;
  std::byte* at = slot.payload + size_in_bytes(counts_);
  const std::byte* const end = slot.payload + kInlineBytes;
  if (!context.heaps->in_reach()) return;
  for (const Buffer& buffer : told()) {
    const auto piece = context.heaps->find(buffer.data, buffer.bytes());
    if ((!piece && buffer.count > 0) || at + sizeof(Piece) > end) return;
    const Piece told = piece.value_or(Piece{});
    std::memcpy(at, &told, sizeof told);
    at += sizeof told;
  }
  slot.place = Place::kHeap;
}

void SharedOperation::meet(const ShmContext& context) {
  check_signatures(context);
  place_ = Place::kInline;
  for (int r = 0; r < ranks_; ++r)
    place_ = std::max(place_, context.rounds->brought(r).place);
  if (!counts_.empty()) read_counts(context);
}

void SharedOperation::locate(const ShmContext& context) {
  sources_.resize(index_of(ranks_));
  for (int r = 0; r < ranks_; ++r) locate_source(context, r);
}

void SharedOperation::check_signatures(const ShmContext& context) const {
  bool equal = true;
  for (int r = 0; r < ranks_; ++r)
    equal = equal &&
            (r == rank_ || context.rounds->brought(r).signature == signature_);
  if (equal) return;
  std::vector<AnnouncedCall> calls;
  for (int r = 0; r < ranks_; ++r) {
    const Slot& slot = context.rounds->brought(r);
    AnnouncedCall& call = calls.emplace_back();
    call.signature = slot.signature;
    std::ranges::copy(slot.call_label, call.label);
  }
  throw Mismatch(describe_mismatch(calls, rank_, context.identity.name));
}

void SharedOperation::read_counts(const ShmContext& context) {
  all_counts_.assign(index_of(ranks_), counts_);
  for (int r = 0; r < ranks_; ++r)
    std::memcpy(all_counts_[index_of(r)].data(),
                context.rounds->brought(r).payload, size_in_bytes(counts_));
  check_counts(operation_, all_counts_, context.identity.name);
}

// The counts of rank `r`'s source list, which follow from this rank's lists.
std::vector<std::int64_t> SharedOperation::counts_of_source(int r) const {
  std::vector<std::int64_t> counts;
  const bool brings_all = !has_root(operation_.kind) ||
                          operation_.kind == OperationKind::kReduce ||
                          operation_.kind == OperationKind::kGather;
  if (!brings_all && r != operation_.root) return counts;
  if (!all_counts_.empty() && !counts_.empty()) {
    counts = all_counts_[index_of(r)];
    counts.resize(index_of(ranks_));
    return counts;
  }
  if (operation_.kind == OperationKind::kAllGather &&
      operation_.division == Division::kPerRank)
    return {outputs_[index_of(r)].count};
  if (operation_.kind == OperationKind::kScatter) {
    for (const Buffer& buffer : outputs_)
      counts.push_back(buffer.count * ranks_);
    return counts;
  }
  const auto& list = updates() ? both_ : inputs_.empty() ? outputs_ : inputs_;
  for (const Buffer& buffer : list) counts.push_back(buffer.count);
  return counts;
}

// Finds rank `r`'s source. Signatures hold only a hash of the counts, so this
// compares the counts before touching a peer's memory.
void SharedOperation::locate_source(const ShmContext& context, int r) {
  const Slot& slot = context.rounds->brought(r);
  const DataType type = static_cast<DataType>(signature_.type);
  auto& source = sources_[index_of(r)];
  source.clear();
  const std::byte* at = slot.payload + size_in_bytes(counts_);
  for (const std::int64_t count : counts_of_source(r)) {
    Buffer buffer{const_cast<std::byte*>(at), count, type};
    if (slot.place == Place::kInline) {
      at += buffer.bytes();
    } else {
      Piece piece;
      std::memcpy(&piece, at, sizeof piece);
      at += sizeof piece;
      buffer.data = context.heaps->at(r, piece);
      if (piece.bytes != buffer.bytes() || buffer.data == nullptr)
        throw Mismatch("buffer " + std::to_string(source.size()) + " of " +
                       describe(operation_) + " has another size on rank " +
                       std::to_string(r));
    }
    source.push_back(buffer);
  }
}

BufferSpan SharedOperation::outgoing(int r, int to) const {
  Operation seen = operation_;
  (inputs_.empty() && seen.kind != OperationKind::kScatter ? seen.outputs
                                                           : seen.inputs) =
      source_of(r);
  return Routes{seen, r, ranks_}.outgoing(to);
}

std::span<const Buffer> SharedOperation::written_by_peers(
    const ShmContext& context) const {
  if (context.rounds->brought(rank_).place != Place::kHeap) return {};
  if (updates()) return outputs_;
  const bool gets_result =
      operation_.kind == OperationKind::kAllReduce ||
      (operation_.kind == OperationKind::kReduce && operation_.root == rank_);
  return gets_result ? routes().source() : std::span<const Buffer>{};
}

std::size_t SharedOperation::longest_route() const {
  std::size_t longest = 0;
  if (all_counts_.empty() || counts_.empty()) {
    for (int r = 0; r < ranks_; ++r)
      longest = std::max({longest, total_bytes(routes().outgoing(r)),
                          total_bytes(routes().incoming(r))});
    return longest;
  }
  for (const auto& counts : all_counts_)
    for (const std::int64_t count : counts)
      longest = std::max(longest, static_cast<std::size_t>(count));
  return longest * size_of(static_cast<DataType>(signature_.type));
}

}  // namespace lockstep
