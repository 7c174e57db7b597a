#define LOCKSTEP_KERNELS reduce_kernel_avx512
#include "lockstep/comm/shm/reduce_kernels.inc"
