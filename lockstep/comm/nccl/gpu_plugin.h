// The plug-in that reaches GPUs, liblockstep_nccl.so: finding and loading it.
// It is looked for where wire/transport_plugin.h says.
//
// Threads: every function may be called from any thread.
// Errors:  InvalidArgument with the next step when it cannot be loaded;
//          SystemError when the process is out of file descriptors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/settings.h"
#include "lockstep/comm/nccl/gpu_table.h"

namespace lockstep {

inline constexpr std::string_view kGpuPlugin = "nccl";

// The plug-in's table. That there is one does not mean that there is a driver
// or a GPU: LockstepGpuTable::device_count() says.
const LockstepGpuTable& load_gpu_table(const Settings& settings);

// For tests: from now on load_gpu_table() gives `table`; null ends that.
void use_gpu_table(const LockstepGpuTable* table);

// What can be done with GPUs on this machine, for `lockstep doctor`.
struct GpuStatus {
  bool plugin = false;       // it was found
  std::int32_t devices = 0;  // usable GPUs
  std::string detail{};      // what was found; otherwise why there is nothing
  std::string next{};        // what to do about it
};

GpuStatus gpu_status(const Settings& settings);

}  // namespace lockstep
