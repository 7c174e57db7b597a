#define LOCKSTEP_KERNELS reduce_kernel_portable
#include "lockstep/comm/reduce/reduce_kernels.inc"
