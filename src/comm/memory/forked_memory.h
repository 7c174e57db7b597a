// Memory that a forked process shares with its parent: see heap.h.
//
// Threads: any thread.
#pragma once

namespace lockstep {

// Whether this process was forked and `address` lies in a heap inherited from
// its parent, which may still write there.
bool is_memory_of_parent(const void* address);

}  // namespace lockstep
