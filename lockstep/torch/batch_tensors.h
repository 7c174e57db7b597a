// The loader's batches as tensors.
//
// Threads: pure function.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/data/loader.h"

namespace lockstep {

struct BatchTensors {
  at::Tensor images;  // float, count x channels x height x width
  at::Tensor labels;  // int64, count
};

// The batch's own memory, without a copy: it goes back to the loader when the
// last tensor on it is gone.
BatchTensors as_tensors(Batch batch);

}  // namespace lockstep
