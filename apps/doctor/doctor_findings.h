// The checks of `lockstep doctor`, topic by topic.
//
// Threads: any thread; try_shared_memory() starts two threads and joins them.
#pragma once

#include <vector>

#include "apps/doctor/doctor_command.h"
#include "src/base/settings.h"
#include "src/launch/worker/gpu_inventory.h"

namespace lockstep {

// The machine. Limits form two groups: descriptors and threads; shared and
// locked memory.
Finding examine_cores();
Finding examine_memory();
Finding examine_vector_units();
Finding examine_limits();
Finding examine_memory_limits();

// One finding per GPU; empty without GPUs. The finding of the backend nccl has
// more.
std::vector<Finding> list_gpus(const GpuInventory& inventory);

// The engines: two ranks, as threads, add numbers through shared memory; the
// heap gets a rank's size; plug-ins are loaded.
Finding try_shared_memory();
Finding try_heap(const Settings& settings);
Finding examine_process_handles();
std::vector<Finding> examine_plugins(const Settings& settings);
Finding examine_mpi_launchers(const EnvironmentLookup& lookup);

// The address at which other hosts reach this one.
Finding examine_network(const Settings& settings);

// The ports at which launchers and ranks meet, unless this is a rank of a job,
// which uses them; and how many the kernel has for connections.
Finding examine_ports(const Settings& settings);

// LibTorch, which only lockstep-train loads.
Finding examine_trainer(const EnvironmentLookup& lookup);

}  // namespace lockstep
