#include "src/torch/frontends/horovod/adasum.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/tensor/tensor_lists.h"

namespace lockstep::horovod {
namespace {

// How much of a vector of squared length `square` is left, of which another
// has the product `product` with it: half where both are the same.
double share_left(double product, double square) {
  return square > 0 ? 1 - product / (2 * square) : 1;
}

at::Tensor adaptive_sum(const at::Tensor& a, const at::Tensor& b) {
  const auto product = (a * b).sum().item<double>();
  return a * share_left(product, a.square().sum().item<double>()) +
         b * share_left(product, b.square().sum().item<double>());
}

// Of as many as a power of two.
at::Tensor adaptive_sum_of_all(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.to(at::kDouble);
  for (; tensors.size() > 1; tensors.resize(tensors.size() / 2))
    for (std::size_t i = 0; i < tensors.size() / 2; ++i)
      tensors[i] = adaptive_sum(tensors[2 * i], tensors[2 * i + 1]);
  return tensors[0];
}

// Of tensors that lie one after the other in `flat`, each by itself.
void combine_flat(ProcessGroup& group, const at::Tensor& flat,
                  const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> all;
  if (group.rank() == 0)
    for (int rank = 0; rank < group.size(); ++rank)
      all.push_back(at::empty_like(flat));
  gather(group, flat, all, 0, {.label = "tensors for Adasum"}).wait();
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& of_rank : all)
      parts.push_back(of_rank.narrow(0, begin, size));
    if (group.rank() == 0)
      flat.narrow(0, begin, size).copy_(adaptive_sum_of_all(std::move(parts)));
    begin += size;
  }
  broadcast(group, flat, 0, {.label = "what Adasum has made"}).wait();
}

}  // namespace

void check_ranks_of_adasum(const ProcessGroup& group, const char* what) {
  if (!std::has_single_bit(static_cast<unsigned>(group.size())))
    throw InvalidArgument(
        c10::str(what, ": ", group.size(),
                 " ranks are no power of two\n"
                 "  next:    use 1, 2, 4, 8, … ranks, or an average"));
}

void combine_by_adasum(ProcessGroup& group, at::TensorList tensors) {
  const c10::NoGradGuard no_grad;
  for (const auto& list : by_device_and_type(tensors)) {
    std::vector<at::Tensor> lines;
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& tensor : list) {
      lines.push_back(tensor.detach().view({-1}));
      sizes.push_back(tensor.numel());
    }
    const at::Tensor flat = at::cat(lines);
    combine_flat(group, flat, sizes);
    const auto parts = flat.split_with_sizes(sizes);
    for (std::size_t i = 0; i < lines.size(); ++i) lines[i].copy_(parts[i]);
  }
}

}  // namespace lockstep::horovod
