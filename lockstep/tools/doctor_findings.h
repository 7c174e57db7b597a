// What `lockstep doctor` looks at, topic by topic.
//
// Threads: pure, but for asking the kernel; try_shared_memory() starts two
//          threads and joins them.
#pragma once

#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/launch/gpu_inventory.h"
#include "lockstep/tools/doctor_command.h"

namespace lockstep {

// The machine. Limits are split by what they limit: descriptors and threads;
// memory that is shared or locked.
Finding examine_cores();
Finding examine_memory();
Finding examine_vector_units();
Finding examine_limits();
Finding examine_memory_limits();

// A finding each; none without GPUs, of which the backend nccl's has more.
std::vector<Finding> list_gpus(const GpuInventory& inventory);

// The engines: two ranks, as threads, add numbers through shared memory; the
// heap is made as large as a rank's; plug-ins are loaded.
Finding try_shared_memory();
Finding try_heap(const Settings& settings);
Finding examine_process_handles();
std::vector<Finding> examine_plugins(const Settings& settings);
Finding examine_mpi_launchers(const EnvironmentLookup& lookup);

// Where other hosts would reach this one.
Finding examine_network(const Settings& settings);

// LibTorch, which only the program that trains has in it.
Finding examine_trainer(const EnvironmentLookup& lookup);

}  // namespace lockstep
