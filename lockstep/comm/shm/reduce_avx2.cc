#define LOCKSTEP_KERNELS reduce_kernel_avx2
#include "lockstep/comm/shm/reduce_kernels.inc"
