// The loader's batches as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/data/loader.h"

namespace lockstep {

struct BatchTensors {
  // count x channels x height x width: float, or uint8 for a batch of pixels.
  at::Tensor images;
  at::Tensor labels;  // int64, count
};

// Views of the batch's own memory, without a copy: the memory returns to the
// loader when its last tensor is destroyed.
BatchTensors as_tensors(Batch batch);

// Copies in LibTorch's own memory, which LibTorch aligns in the same way in
// every run: the bits of its matrix products may depend on the alignment. The
// batch's memory returns to the loader at once.
BatchTensors aligned_tensors(Batch batch);

}  // namespace lockstep
