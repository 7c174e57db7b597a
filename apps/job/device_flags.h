// The flags of `lockstep train`, `evaluate`, `predict` and `bench` about the
// devices that ranks use.
//
// Errors:  InvalidArgument with one line that names the flag, the given value
//          and the accepted ones.
#pragma once

#include <optional>
#include <string>

#include "apps/job/rank_place.h"
#include "src/base/settings.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct ComputeOptions;
struct LaunchOptions;
struct Settings;

// As typed; complete_device_flags() settles the device.
struct DeviceFlags {
  std::string device = "cpu";  // or cuda
  std::string gpus;            // a number or a list; empty: all
};

// Adds the flags, with their help, to `command`. The target must outlive the
// parsing; `use` is the verb for a device in the help: "compute on".
void add_device_flags(CLI::App& command, DeviceFlags& flags,
                      const std::string& use);

// Sets one rank per GPU by default. Refuses contradictory flags. Call it before
// the number of ranks is chosen.
void complete_device_flags(DeviceFlags& flags, std::optional<int>& ranks,
                           const RankPlace& place);

// Refuses what the completed `devices` do not support.
void check_compute_flags(const ComputeOptions& options,
                         const DeviceFlags& devices);

// The value of CUDA_VISIBLE_DEVICES with which the job's ranks see only the
// requested GPUs; nothing when it must not change. A list indexes the GPUs that
// are already visible.
std::optional<std::string> visible_devices(const DeviceFlags& flags,
                                           const EnvironmentLookup& lookup);

// Sets that value for the launched workers.
void apply(const DeviceFlags& flags, const EnvironmentLookup& lookup,
           LaunchOptions& options);

// The index of this rank's GPU on its host.
int gpu_of_rank(const Settings& settings);

// The device of a rank, whose GPU has this index: see
// apps/trainer/loop/training_device.h.
std::string device_of_rank(const DeviceFlags& flags, int gpu);

}  // namespace lockstep
