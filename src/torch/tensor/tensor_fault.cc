#include "src/torch/tensor/tensor_fault.h"

#include <ATen/core/Formatting.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/torch/tensor_collectives.h"

namespace lockstep {
namespace {

// Whether two elements may share memory. Without overlap each dimension, from
// the smallest stride on, steps over the whole reach of those before it.
// Returns true for some exotic layouts without overlap.
bool may_overlap(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, size
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) > 1)
      steps.emplace_back(tensor.stride(i), tensor.size(i));
  std::ranges::sort(steps);
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace

std::optional<TensorFault> fault_of_moved(const at::Tensor& tensor) {
  if (!tensor.defined())
    return TensorFault{"is an undefined tensor",
                       "make it first, for example with at::empty(); ranks "
                       "that only receive need memory too"};
  if (tensor.layout() != at::kStrided)
    return TensorFault{"is sparse", "make it dense: tensor.to_dense()"};
  if (tensor.is_meta())
    return TensorFault{
        "is on the meta device, without elements",
        "give it memory and values first: at::empty_like(tensor, at::kCPU), or "
        "to_empty() of its module"};
  if (!tensor.is_cpu() && !tensor.is_cuda())
    return TensorFault{c10::str("is on ", tensor.device(),
                                ", neither the CPU nor a CUDA device"),
                       "use tensor.cpu(), and copy the result back"};
  return std::nullopt;
}

TensorFault fault_of_type(at::ScalarType type) {
  if (at::isComplexType(type))
    return {c10::str("is of complex type ", type),
            "use at::view_as_real(tensor), the same memory as pairs of real "
            "numbers; sums and moves mean the same there. As a parameter "
            "register the pairs, and compute with at::view_as_complex() of "
            "them"};
  return {c10::str("is of type ", type),
          "convert it with to(); collectives know Float, Double, Half, "
          "BFloat16, Char, Byte, Int, Long and Bool"};
}

std::optional<TensorFault> fault_of_reduced(const at::Tensor& tensor,
                                            at::ScalarType type) {
  if (auto fault = fault_of_moved(tensor)) return fault;
  const bool is_known = std::ranges::any_of(
      kAllDataTypes,
      [type](DataType known) { return scalar_type_of(known) == type; });
  if (is_known) return std::nullopt;
  return fault_of_type(type);
}

std::optional<TensorFault> fault_of_written(const at::Tensor& tensor) {
  if (tensor._is_zerotensor())
    return TensorFault{"is written, but is zeros without memory",
                       "use tensor.clone()"};
  if (tensor.numel() > 0 && may_overlap(tensor))
    return TensorFault{
        c10::str("is written, but several of its elements share memory: shape ",
                 tensor.sizes(), ", strides ", tensor.strides()),
        "use tensor.contiguous(); expand() and unfold() make such tensors"};
  return std::nullopt;
}

}  // namespace lockstep
