#define LOCKSTEP_KERNELS reduce_kernel_avx2
#include "src/comm/reduce/reduce_kernels.inc"
