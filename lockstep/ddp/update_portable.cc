#define LOCKSTEP_KERNELS update_kernels_portable
#include "lockstep/ddp/update_kernels.inc"
