// The flags of `lockstep train`, `evaluate`, `predict` and `bench` about the
// devices that ranks use.
//
// Errors:  InvalidArgument with one line that names the flag, what was given
//          and what would do.
#pragma once

#include <optional>
#include <string>

#include "lockstep/tools/rank_place.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct LaunchOptions;
struct Settings;

// As typed; complete_device_flags() settles the device.
struct DeviceFlags {
  std::string device = "cpu";  // or cuda
  std::string gpus;            // how many, or which; empty: all
};

// How a model computes. As typed.
struct ComputeFlags {
  bool tf32 = false;           // on GPUs: see train/precision.h
  bool channels_last = false;  // how images and weights are stored
};

// Adds them, with their help, to `command`. `flags` must outlive its parsing;
// `use` is what ranks do with a device: "compute on".
void add_device_flags(CLI::App& command, DeviceFlags& flags,
                      const std::string& use);
void add_compute_flags(CLI::App& command, ComputeFlags& flags);

// A rank for each GPU where nobody says otherwise. Refuses what does not fit.
// To be called before ranks are chosen.
void complete_device_flags(DeviceFlags& flags, std::optional<int>& ranks,
                           const RankPlace& place);

// Refuses what `devices`, which are settled, have not.
void check_compute_flags(const ComputeFlags& flags, const DeviceFlags& devices);

// What CUDA_VISIBLE_DEVICES is to be for the job, so that its ranks see the
// GPUs that were asked for and no others; nothing where it is to stay as it is.
// A list counts among those that are visible already.
std::optional<std::string> visible_devices(const DeviceFlags& flags,
                                           const EnvironmentLookup& lookup);

// Sets it for what is launched.
void apply(const DeviceFlags& flags, const EnvironmentLookup& lookup,
           LaunchOptions& options);

// The index of this rank's GPU, as its host has them.
int gpu_of_rank(const Settings& settings);

// The device of a rank, whose GPU has this index: see train/training_device.h.
std::string device_of_rank(const DeviceFlags& flags, int gpu);

}  // namespace lockstep
