// Which stream the calling thread uses on a GPU. Operations whose
// CallOptions::stream is null are ordered in it.
//
// CUDA has no current stream, but tensor libraries do: they register it here.
//
// Threads: every function may be called from any thread.
#pragma once

#include "lockstep/base/buffer.h"

namespace lockstep {

// The cudaStream_t that the calling thread uses on `device`; null is the
// device's default stream. Must not throw.
using CurrentStream = void* (*)(Device device);

// Sets the function that current_stream() calls; null removes it.
void set_current_stream(CurrentStream ask);

// The device's default stream if no function is set.
void* current_stream(Device device);

}  // namespace lockstep
