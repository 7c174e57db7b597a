#include "src/torch/gradient/sparse_gradients.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

// Coalesced, of as many dimensions of indices.
at::Tensor as_sparse(const at::Tensor& gradient, std::uint8_t dimensions) {
  if (gradient.layout() == at::kSparse && gradient.sparse_dim() == dimensions)
    return gradient.coalesce();
  const at::Tensor dense =
      gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
  return dense.to_sparse(dimensions);
}

// Of its parameter's type on its device, with an empty .grad.
at::Tensor stand_in_for(const at::Tensor& parameter) {
  at::Tensor stand_in = at::empty({0}, parameter.options());
  stand_in.mutable_grad() =
      at::zeros({0}, parameter.options().dtype(gradient_type(parameter)));
  return stand_in;
}

// All ranks' tensors, one after the other along the first dimension.
at::Tensor gathered(ProcessGroup& order, const at::Tensor& mine,
                    std::span<const std::int64_t> rows, const char* place) {
  std::vector<at::Tensor> parts;
  std::vector<std::int64_t> shape = mine.sizes().vec();
  for (const std::int64_t count : rows) {
    shape[0] = count;
    parts.push_back(at::empty(shape, mine.options()));
  }
  all_gather(order, parts, mine.contiguous(), {.label = place}).wait();
  return at::cat(parts);
}

}  // namespace

SparseGradients::SparseGradients(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)),
      in_buckets_(parameters_),
      dimensions_(parameters_.size(), 0),
      made_dense_(parameters_.size(), 0) {}

void SparseGradients::begin_pass() {
  std::ranges::fill(made_dense_, std::uint8_t{0});
  learnt_.clear();
  has_learnt_ = false;
}

bool SparseGradients::prepare(std::size_t parameter, const std::string& name) {
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  if (!gradient.defined()) return false;
  if (is_sparse(parameter)) {
    if (gradient.sizes() == parameters_[parameter].sizes()) return false;
    throw InvalidArgument(c10::str("the gradient of parameter ", name,
                                   " cannot be reduced: its shape is ",
                                   gradient.sizes(), ", the parameter's ",
                                   parameters_[parameter].sizes()));
  }
  if (gradient.layout() == at::kStrided) return false;
  made_dense_[parameter] =
      gradient.layout() == at::kSparse && gradient.sparse_dim() > 0
          ? static_cast<std::uint8_t>(gradient.sparse_dim())
          : std::uint8_t{0};
  gradient = gradient.to_dense();
  return made_dense_[parameter] != 0;
}

MissingGradients::Mark SparseGradients::mark_of(std::size_t parameter) const {
  return MissingGradients::sparse_mark(made_dense_[parameter]);
}

void SparseGradients::learn(const MissingGradients& told) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::uint8_t dimensions = told.sparse_dimensions(i);
    if (dimensions == 0 || is_sparse(i)) continue;
    dimensions_[i] = dimensions;
    learnt_.push_back(i);
    has_learnt_ = true;
  }
}

void SparseGradients::end_pass() {
  for (const std::size_t i : learnt_) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.defined()) gradient = as_sparse(gradient, dimensions_[i]);
    in_buckets_[i] = stand_in_for(parameters_[i]);
  }
  learnt_.clear();
}

// Without indices where this rank has no gradient.
at::Tensor SparseGradients::own_part(std::size_t parameter) const {
  const at::Tensor& tensor = parameters_[parameter];
  if (tensor.grad().defined())
    return as_sparse(tensor.grad(), dimensions_[parameter])
        .to(gradient_type(tensor))
        .coalesce();
  const std::int64_t dimensions = dimensions_[parameter];
  std::vector<std::int64_t> values = tensor.sizes().slice(dimensions).vec();
  values.insert(values.begin(), 0);
  const auto options = tensor.options().dtype(gradient_type(tensor));
  return at::sparse_coo_tensor(
             at::empty({dimensions, 0}, options.dtype(at::kLong)),
             at::empty(values, options), tensor.sizes())
      .coalesce();
}

// Values of 16 bits are added in float32 and divided before the one rounding:
// their sums would overflow, or lose what is small.
at::Tensor SparseGradients::combine(std::size_t parameter, ProcessGroup& order,
                                    std::span<const std::int64_t> counts,
                                    double divisor) const {
  const at::Tensor mine = own_part(parameter);
  const at::Tensor indices = gathered(order, mine.indices().t(), counts,
                                      "indices of a sparse gradient");
  at::Tensor values =
      gathered(order, mine.values(), counts, "values of a sparse gradient");
  const at::ScalarType type = values.scalar_type();
  const bool is_narrow = type == at::kHalf || type == at::kBFloat16;
  if (is_narrow) values = values.to(at::kFloat);
  const at::Tensor sum =
      at::sparse_coo_tensor(indices.t().contiguous(), values, mine.sizes())
          .coalesce();
  if (divisor != 1) sum._values().div_(divisor);
  if (!is_narrow) return sum;
  return at::sparse_coo_tensor(sum.indices(), sum.values().to(type),
                               sum.sizes())
      ._coalesced_(true);
}

void SparseGradients::reduce(ProcessGroup& order, double divisor,
                             const std::function<bool(std::size_t)>& unused,
                             Result result) {
  std::vector<std::size_t> used;
  std::vector<std::int64_t> mine;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_sparse(i) || std::ranges::count(learnt_, i) > 0 || unused(i))
      continue;
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.defined()) gradient = as_sparse(gradient, dimensions_[i]);
    used.push_back(i);
    mine.push_back(gradient.defined() ? gradient._nnz() : 0);
  }
  if (used.empty()) return;
  const auto ranks = static_cast<std::size_t>(order.size());
  std::vector<std::int64_t> all(ranks * mine.size());
  order
      .all_gather(view(mine), view(all), {.label = "sizes of sparse gradients"})
      .wait();
  for (std::size_t k = 0; k < used.size(); ++k) {
    std::vector<std::int64_t> counts;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      counts.push_back(all[rank * mine.size() + k]);
    const at::Tensor sum = combine(used[k], order, counts, divisor);
    at::Tensor& gradient = parameters_[used[k]].mutable_grad();
    if (result == Result::kKept)
      gradient = sum;
    else
      gradient.reset();
  }
}

}  // namespace lockstep
