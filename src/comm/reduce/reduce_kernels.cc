#include "src/comm/reduce/reduce_kernels.h"

#include "lockstep/base/error.h"

namespace lockstep {

// Defined by reduce_kernels.inc, once for each instruction set.
ReduceKernel reduce_kernel_portable(ReduceOp op, DataType type);
#if defined(__x86_64__)
ReduceKernel reduce_kernel_avx2(ReduceOp op, DataType type);
ReduceKernel reduce_kernel_avx512(ReduceOp op, DataType type);
#endif

ReduceKernel reduce_kernel(ReduceOp op, DataType type, InstructionSet set) {
  LOCKSTEP_CHECK(is_defined(op, type), "reduction not defined on this type");
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return reduce_kernel_avx512(op, type);
  if (set == InstructionSet::kAvx2) return reduce_kernel_avx2(op, type);
#endif
  return reduce_kernel_portable(op, type);
}

}  // namespace lockstep
