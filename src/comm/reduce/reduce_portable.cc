#define LOCKSTEP_KERNELS reduce_kernel_portable
#include "src/comm/reduce/reduce_kernels.inc"
