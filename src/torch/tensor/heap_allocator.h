// Serves LibTorch's CPU tensors from the heap that the other ranks of the host
// map: gradients are allocated where they are reduced, and a training step
// reuses the memory that the step before freed, without a page fault.
//
// Only large tensors come from the heap; small ones, and all when the heap is
// full, come from the previous allocator. Existing tensors do not change. A
// heap that has served tensors stays mapped until the process ends, since
// tensors may live that long; a detached heap gets no new tensors.
//
// Threads: any. The first call must not race with the allocation of tensors.
// Errors:  none; a request that the heap cannot serve goes to LibTorch's
//          allocator.
#pragma once

#include <cstddef>
#include <memory>

#include "src/comm/memory/heap.h"

namespace lockstep {

// Tensors with fewer bytes are not allocated in the heap.
inline constexpr std::size_t kLeastHeapTensor = 32 << 10;

// Large tensors of this process come from `heap` from now on. Null, or the heap
// that is in use already, changes nothing.
void allocate_tensors_from(std::shared_ptr<Heap> heap);

}  // namespace lockstep
