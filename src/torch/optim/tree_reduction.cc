#include "src/torch/optim/tree_reduction.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/optim/update_state.h"
#include "src/torch/tensor/tensor_lists.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr char kPlace[] = "sums over logical shards";

// Combines `right` into `left`.
void combine(const Tensors& left, const Tensors& right) {
  const auto lefts = by_device_and_type(left);
  const auto rights = by_device_and_type(right);
  for (std::size_t i = 0; i < lefts.size(); ++i) {
    if (is_summed(lefts[i].front())) {
      at::_foreach_add_(lefts[i], rights[i]);
      continue;
    }
    for (std::size_t j = 0; j < lefts[i].size(); ++j) {
      at::Tensor largest = lefts[i][j];
      at::maximum_out(largest, largest, rights[i][j]);
    }
  }
}

// Adds in the group's order, which on the CPU is the tree; for a maximum the
// order does not matter.
void all_reduce(ProcessGroup& group, const Tensors& list) {
  std::vector<Buffer> buffers;
  for (const at::Tensor& tensor : list)
    buffers.push_back(view(in_memory_order(tensor)));
  const ReduceOp op = is_summed(list.front()) ? ReduceOp::kSum : ReduceOp::kMax;
  group.all_reduce(buffers, op, {.label = kPlace}).wait();
}

// One block of all tensors, padded with zeros to equal parts; each rank adds up
// one part.
void exchange_and_add(ProcessGroup& group, const Tensors& list) {
  const std::int64_t ranks = group.size();
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : list) elements += tensor.numel();
  const std::int64_t part = (elements + ranks - 1) / ranks;
  if (part == 0) return;
  const at::Tensor block =
      at::empty({ranks * part}, list.front().options().requires_grad(false));
  block.narrow(0, elements, block.numel() - elements).zero_();
  Tensors flats, slots;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    flats.push_back(in_memory_order(tensor));
    slots.push_back(block.narrow(0, begin, tensor.numel()));
    begin += tensor.numel();
  }
  at::_foreach_copy_(slots, flats);
  const at::Tensor of_all = at::empty_like(block);
  group.all_to_all(view(block), view(of_all), {.label = kPlace}).wait();
  TreeSum sum;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    sum.add({of_all.narrow(0, rank * part, part)});
  const at::Tensor own = sum.take().front();
  group.all_gather(view(own), view(block), {.label = kPlace}).wait();
  at::_foreach_copy_(flats, slots);
}

}  // namespace

bool is_summed(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type());
}

void TreeSum::add(Tensors list) {
  std::size_t level = 0;
  for (; level < sums_.size() && sums_[level]; ++level) {
    Tensors left = *std::exchange(sums_[level], std::nullopt);
    combine(left, list);
    list = std::move(left);
  }
  if (level == sums_.size()) sums_.emplace_back();
  sums_[level] = std::move(list);
}

// The lowest levels hold the latest lists.
Tensors TreeSum::take() {
  std::optional<Tensors> sum;
  for (auto& level : sums_) {
    if (!level) continue;
    if (sum) combine(*level, *sum);
    sum = std::move(level);
  }
  sums_.clear();
  LOCKSTEP_CHECK(sum.has_value(), "take() without a list to sum");
  return *std::move(sum);
}

void tree_reduce(ProcessGroup& group, at::TensorList tensors) {
  if (group.size() == 1) return;
  for (const auto& list : by_device_and_type(tensors)) {
    if (is_summed(list.front()) && !list.front().is_cpu())
      exchange_and_add(group, list);
    else
      all_reduce(group, list);
  }
}

}  // namespace lockstep
