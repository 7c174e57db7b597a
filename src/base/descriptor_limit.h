// The number of files that this process may open.
//
// Threads: any thread; the limit is the process's, and programs that it starts
//          inherit it.
// Errors:  none; where the kernel refuses, the limit stays.
#pragma once

namespace lockstep {

// Raises the soft limit to the hard limit, at most to 65,536: a world of n
// ranks needs about 2 n descriptors in each rank, and n in the launcher.
void raise_descriptor_limit();

}  // namespace lockstep
