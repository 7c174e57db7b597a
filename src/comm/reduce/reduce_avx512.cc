#define LOCKSTEP_KERNELS reduce_kernel_avx512
#include "src/comm/reduce/reduce_kernels.inc"
