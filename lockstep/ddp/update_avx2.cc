#define LOCKSTEP_KERNELS update_kernels_avx2
#include "lockstep/ddp/update_kernels.inc"
