#include "src/base/instruction_set.h"

namespace lockstep {

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

}  // namespace lockstep
