// Finds and loads the GPU plug-in, liblockstep_nccl.so. wire/transport_plugin.h
// lists the places.
//
// Threads: every function may be called from any thread.
// Errors:  InvalidArgument with the next step when it cannot be loaded;
//          SystemError when the process is out of file descriptors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/settings.h"
#include "src/comm/nccl/gpu_table.h"
#include "src/comm/rendezvous/plugin.h"

namespace lockstep {

// The plug-in's table. It exists even without a driver or a GPU:
// LockstepGpuTable::device_count() reports those.
const LockstepGpuTable& load_gpu_table(const Settings& settings);

// For tests: from now on load_gpu_table() returns `table`; null restores the
// plug-in's.
void use_gpu_table(const LockstepGpuTable* table);

// GPU support on this machine, for `lockstep doctor`.
struct GpuStatus {
  bool plugin = false;       // whether the plug-in was found
  std::int32_t devices = 0;  // usable GPUs
  std::string detail{};      // what was found, or why no GPU is usable
  std::string next{};        // what the user can do about it
};

GpuStatus gpu_status(const Settings& settings);

}  // namespace lockstep
