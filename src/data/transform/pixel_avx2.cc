#define LOCKSTEP_KERNELS pixel_kernels_avx2
#include "src/data/transform/pixel_kernels.inc"
