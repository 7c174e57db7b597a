#include "src/comm/testing/fake_gpu/fake_gpu_sum.h"

#include "src/comm/reference/reference_arithmetic.h"

namespace lockstep {
namespace {

ReduceOp op_of(LockstepGpuSum sum) {
  switch (sum) {
    case kGpuSum:
      return ReduceOp::kSum;
    case kGpuProduct:
      return ReduceOp::kProduct;
    case kGpuMin:
      return ReduceOp::kMin;
    case kGpuMax:
      return ReduceOp::kMax;
    case kGpuAverage:
      return ReduceOp::kAverage;
  }
  return ReduceOp::kSum;
}

}  // namespace

std::vector<std::byte> reduce_elements(
    DataType type, LockstepGpuSum sum,
    const std::vector<const std::byte*>& ranks, std::size_t count) {
  const std::size_t bytes = count * size_of(type);
  std::vector<std::vector<std::byte>> contributions;
  for (const std::byte* elements : ranks)
    contributions.emplace_back(elements, elements + bytes);
  std::vector<std::byte> result(bytes);
  reference_reduce(op_of(sum), type, contributions, result);
  return result;
}

}  // namespace lockstep
