#define LOCKSTEP_KERNELS update_kernels_avx2
#include "src/planning/update_kernels.inc"
