#define LOCKSTEP_KERNELS reduce_kernel_avx512
#include "lockstep/comm/reduce/reduce_kernels.inc"
