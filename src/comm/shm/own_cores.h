// Whether the ranks of a host can run at the same time: whether each can have
// its own core, given the cores on which it may run.
#pragma once

#include <sched.h>

#include <vector>

namespace lockstep {

// The cores that the calling thread may run on, after cpusets, taskset and the
// launcher. All cores if the kernel does not say.
cpu_set_t cores_of_this_thread();

// `allowed` has the cores of each rank.
bool each_has_a_core(const std::vector<cpu_set_t>& allowed);

}  // namespace lockstep
