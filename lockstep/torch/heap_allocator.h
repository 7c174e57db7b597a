// LibTorch's memory for tensors on the CPU, served from the heap that the other
// ranks of the host can reach: gradients are born where they are reduced, and
// what a training step frees the next one gets, without a page fault.
//
// Only large tensors come from the heap; small ones, and all when the heap is
// full, come from where they came from before. Nothing changes for tensors that
// exist already. A heap that tensors were born in stays mapped until the
// process ends, since tensors may; a detached one gets no new tensors.
//
// Threads: any. The first call must not race with the making of tensors.
// Errors:  none; a request that cannot be served goes to LibTorch's allocator.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/comm/heap.h"

namespace lockstep {

// Tensors of fewer bytes are not born in the heap.
inline constexpr std::size_t kLeastHeapTensor = 32 << 10;

// From now on, large tensors of this process are born in `heap`. Null, or the
// heap that is in use already, changes nothing.
void allocate_tensors_from(std::shared_ptr<Heap> heap);

}  // namespace lockstep
