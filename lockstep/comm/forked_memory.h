// Memory that a forked process has in common with its parent: see heap.h.
//
// Threads: any.
#pragma once

namespace lockstep {

// Whether this process was forked and `address` lies in a heap that it had from
// its parent, which may still write there.
bool is_memory_of_parent(const void* address);

}  // namespace lockstep
