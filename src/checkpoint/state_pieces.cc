#include "src/checkpoint/state_pieces.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "src/base/log.h"
#include "src/checkpoint/checkpoint_checksum.h"
#include "src/torch/optim/update_state.h"

namespace lockstep {
namespace {

// Prime, so that it hits all columns of a matrix unless they are as many.
constexpr std::int64_t kSampleStep = 1021;

std::span<std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// `tensor` itself if its elements fill a block of memory, otherwise a copy.
at::Tensor filling_its_memory(const std::string& name,
                              const at::Tensor& tensor) {
  check_storable(name, tensor);
  const at::Tensor plain = tensor.detach();
  const bool fills = !plain.is_neg() && !plain.is_conj() &&
                     plain.is_non_overlapping_and_dense();
  return fills ? plain : storable(name, plain);
}

// Whether the ranks can divide what they hold.
bool is_same_on_all_ranks(const PiecesDigest& digest, ProcessGroup& group) {
  std::array<std::int64_t, 4> ends{digest.outline, -digest.outline,
                                   digest.sample, -digest.sample};
  group
      .all_reduce(view(std::span<std::int64_t>(ends)), ReduceOp::kMax,
                  {.label = "saving a checkpoint: which tensors ranks hold"})
      .wait();
  if (ends[0] != -ends[1]) return false;
  if (ends[2] == -ends[3]) return true;
  if (group.rank() == 0)
    log(LogLevel::kWarn,
        "the ranks' models or optimizers differ: rank 0 saves its own in the "
        "checkpoint");
  return false;
}

// The elements of `piece` that begin in [begin, end), bytes from its start.
StatePiece cut_piece(const StatePiece& piece, std::int64_t begin,
                     std::int64_t end) {
  const std::int64_t size = piece.elements.element_size();
  const auto first_from = [&](std::int64_t byte) {
    return std::clamp<std::int64_t>((byte + size - 1) / size, 0,
                                    piece.elements.numel());
  };
  StatePiece result = piece;
  result.part.begin = first_from(begin);
  result.elements = piece.elements.narrow(0, result.part.begin,
                                          first_from(end) - result.part.begin);
  return result;
}

at::Tensor empty_for(const ShardedTensor& tensor, at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions(scalar_type_of(tensor.type)));
}

}  // namespace

PiecesDigest digest_of(const std::vector<StatePiece>& pieces) {
  CheckpointChecksum outline, sample;
  for (const auto& [name, part, elements] : pieces) {
    outline.add_tensor(name, name_of(stored_type_of(elements.scalar_type())),
                       part.shape);
    outline.add(std::as_bytes(std::span(part.order)));
    if (elements.numel() == 0) continue;
    const at::Tensor some =
        elements.slice(0, 0, std::nullopt, kSampleStep).cpu().contiguous();
    sample.add(bytes_in(some));
  }
  return {std::stoll(outline.hex(), nullptr, 16),
          std::stoll(sample.hex(), nullptr, 16)};
}

std::vector<std::int64_t> order_of(const at::Tensor& dense) {
  if (dense.is_contiguous()) return {};
  std::vector<std::int64_t> order(static_cast<std::size_t>(dense.dim()));
  std::iota(order.begin(), order.end(), 0);
  // The stride of a single element has no meaning.
  const auto stride = [&](std::int64_t dim) {
    return dense.size(dim) == 1 ? std::int64_t{0} : dense.stride(dim);
  };
  std::ranges::stable_sort(order, std::ranges::greater(), stride);
  return order;
}

StatePiece whole_piece(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor filling = filling_its_memory(name, tensor);
  return {.name = name,
          .part = {.shape = filling.sizes().vec(),
                   .begin = 0,
                   .order = order_of(filling)},
          .elements = in_memory_order(filling)};
}

std::vector<StatePiece> divide_pieces(
    const std::vector<StatePiece>& held_by_all, const PiecesDigest& digest,
    ProcessGroup& group) {
  std::int64_t total = 0;
  for (const StatePiece& piece : held_by_all)
    total += static_cast<std::int64_t>(piece.elements.nbytes());
  const std::int64_t ranks =
      is_same_on_all_ranks(digest, group) ? group.size() : 1;
  if (group.rank() >= ranks) return {};
  const std::int64_t begin = total * group.rank() / ranks;
  const std::int64_t end = total * (group.rank() + 1) / ranks;
  std::vector<StatePiece> mine;
  std::int64_t at = 0;
  for (const StatePiece& piece : held_by_all) {
    StatePiece part = cut_piece(piece, begin - at, end - at);
    at += static_cast<std::int64_t>(piece.elements.nbytes());
    const bool is_empty = piece.elements.numel() == 0;
    if (part.elements.numel() > 0 || (is_empty && group.rank() == 0))
      mine.push_back(std::move(part));
  }
  return mine;
}

at::Tensor read_tensor(const CheckpointSet& set, const std::string& name) {
  const ShardedTensor& tensor = set.tensors().at(name);
  std::vector<std::int64_t> shape = tensor.shape;
  std::vector<std::int64_t> back(tensor.order.size());
  for (std::size_t i = 0; i < tensor.order.size(); ++i) {
    const auto dim = static_cast<std::size_t>(tensor.order[i]);
    shape[i] = tensor.shape[dim];
    back[dim] = static_cast<std::int64_t>(i);
  }
  const at::Tensor stored = empty_for(tensor, shape);
  set.read(name, 0, bytes_in(stored));
  return tensor.order.empty() ? stored : stored.permute(back);
}

NamedTensors read_tensors(const CheckpointSet& set, std::string_view prefix) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : set.tensors())
    if (name.starts_with(prefix)) tensors.emplace(name, read_tensor(set, name));
  return tensors;
}

at::Tensor read_piece(const CheckpointSet& set, const std::string& name,
                      const at::Tensor& like, std::int64_t begin,
                      std::int64_t count) {
  const ShardedTensor& tensor = set.tensors().at(name);
  if (tensor.order == order_of(like)) {
    at::Tensor piece = empty_for(tensor, {count});
    set.read(name, static_cast<std::uint64_t>(begin), bytes_in(piece));
    return piece;
  }
  const at::Tensor stored = read_tensor(set, name);
  const at::Tensor whole =
      at::empty_like(like, stored.options().requires_grad(false));
  whole.copy_(stored);
  return in_memory_order(whole).narrow(0, begin, count).clone();
}

}  // namespace lockstep
