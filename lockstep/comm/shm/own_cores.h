// Whether the ranks of a host can run at the same time: whether each of them
// can have a core that no other needs, given where each may run.
//
// Threads: pure functions.
#pragma once

#include <sched.h>

#include <vector>

namespace lockstep {

// The cores that the calling thread may run on: what cpusets, taskset and a
// launcher have left it. All where the kernel does not say.
cpu_set_t cores_of_this_thread();

// `allowed` has the cores of each rank.
bool each_has_a_core(const std::vector<cpu_set_t>& allowed);

}  // namespace lockstep
