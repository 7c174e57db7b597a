#define LOCKSTEP_KERNELS update_kernels_avx512
#include "lockstep/ddp/update_kernels.inc"
