// The flags of `lockstep train` about the devices that ranks compute on.
//
// Threads: pure functions.
// Errors:  as train_options.h.
#pragma once

#include <optional>
#include <string>

#include "lockstep/tools/train_options.h"

namespace lockstep {

// Adds them, with their help, to `command`. `options` must outlive its parsing.
void add_device_flags(CLI::App& command, TrainOptions& options);

// A rank for each GPU where nobody says otherwise. Refuses what does not fit.
// To be called before ranks are chosen.
void complete_device_flags(TrainOptions& options, const RankPlace& place);

// What CUDA_VISIBLE_DEVICES is to be for the job, so that its ranks see the
// GPUs that were asked for and no others; nothing where it is to stay as it is.
// A list counts among those that are visible already.
std::optional<std::string> visible_devices(const TrainOptions& options,
                                           const EnvironmentLookup& lookup);

// The device of the rank `local_rank` of its host: see train/training_device.h.
std::string device_of_rank(const TrainOptions& options, int local_rank);

}  // namespace lockstep
