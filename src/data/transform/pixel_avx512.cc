#define LOCKSTEP_KERNELS pixel_kernels_avx512
#include "src/data/transform/pixel_kernels.inc"
