#define LOCKSTEP_KERNELS update_kernels_avx512
#include "src/planning/update_kernels.inc"
