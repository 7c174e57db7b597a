#define LOCKSTEP_KERNELS reduce_kernel_portable
#include "lockstep/comm/shm/reduce_kernels.inc"
