#define LOCKSTEP_KERNELS update_kernels_portable
#include "src/planning/update_kernels.inc"
