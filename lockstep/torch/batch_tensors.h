// The loader's batches as tensors.
//
// Threads: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/data/loader.h"

namespace lockstep {

struct BatchTensors {
  // count x channels x height x width: float, or uint8 of a batch of pixels.
  at::Tensor images;
  at::Tensor labels;  // int64, count
};

// The batch's own memory, without a copy: it goes back to the loader when the
// last tensor on it is gone.
BatchTensors as_tensors(Batch batch);

// A copy in memory of LibTorch's own, which it aligns alike in every run: the
// bits of its matrix products may depend on that. The batch's goes back at
// once.
BatchTensors aligned_tensors(Batch batch);

}  // namespace lockstep
