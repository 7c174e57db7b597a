#include "src/data/transform/pixel_kernels.h"

namespace lockstep::transforms {

// Defined by pixel_kernels.inc, once for each instruction set.
const PixelKernels& pixel_kernels_portable();
#if defined(__x86_64__)
const PixelKernels& pixel_kernels_avx2();
const PixelKernels& pixel_kernels_avx512();
#endif

const PixelKernels& pixel_kernels(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return pixel_kernels_avx512();
  if (set == InstructionSet::kAvx2) return pixel_kernels_avx2();
#endif
  return pixel_kernels_portable();
}

}  // namespace lockstep::transforms
