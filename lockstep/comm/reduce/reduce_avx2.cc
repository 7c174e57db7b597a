#define LOCKSTEP_KERNELS reduce_kernel_avx2
#include "lockstep/comm/reduce/reduce_kernels.inc"
