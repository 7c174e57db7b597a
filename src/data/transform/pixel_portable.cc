#define LOCKSTEP_KERNELS pixel_kernels_portable
#include "src/data/transform/pixel_kernels.inc"
