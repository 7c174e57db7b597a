#include "lockstep/comm/reduce/reduce_kernels.h"

#include "lockstep/base/error.h"

namespace lockstep {

// Made by reduce_kernels.inc, once for each instruction set.
ReduceKernel reduce_kernel_portable(ReduceOp op, DataType type);
#if defined(__x86_64__)
ReduceKernel reduce_kernel_avx2(ReduceOp op, DataType type);
ReduceKernel reduce_kernel_avx512(ReduceOp op, DataType type);
#endif

InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  static const InstructionSet best = [] {
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
      return InstructionSet::kAvx512;
    // Every CPU with AVX2 has F16C, which the AVX2 kernels use as well.
    if (__builtin_cpu_supports("avx2")) return InstructionSet::kAvx2;
    return InstructionSet::kPortable;
  }();
  return best;
#else
  return InstructionSet::kPortable;
#endif
}

std::string_view name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "AVX2";
    case InstructionSet::kAvx512:
      return "AVX-512";
  }
  return "unknown";
}

ReduceKernel reduce_kernel(ReduceOp op, DataType type, InstructionSet set) {
  LOCKSTEP_CHECK(is_defined(op, type), "reduction not defined on this type");
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return reduce_kernel_avx512(op, type);
  if (set == InstructionSet::kAvx2) return reduce_kernel_avx2(op, type);
#endif
  return reduce_kernel_portable(op, type);
}

}  // namespace lockstep
