// Which stream the calling thread uses on a GPU: what operations are ordered in
// where CallOptions::stream names none.
//
// CUDA knows of no such thing, libraries of tensors do: they say so here.
//
// Threads: any.
#pragma once

#include "lockstep/base/data_type.h"

namespace lockstep {

// The cudaStream_t that the calling thread uses on `device`; null is the
// device's default stream. Must not throw.
using CurrentStream = void* (*)(Device device);

// From now on `ask` is asked; null ends that.
void set_current_stream(CurrentStream ask);

// The default stream where nobody has said anything.
void* current_stream(Device device);

}  // namespace lockstep
