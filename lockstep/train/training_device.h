// The device that a rank trains on, or evaluates, by name.
//
// Threads: functions of their arguments, and of what devices there are.
// Errors:  InvalidArgument for a name that is none, for a LibTorch without
//          CUDA, a machine without a driver, and a device that is not there.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace lockstep {

// "cpu", "cuda" (its first device) or "cuda:N".
c10::Device training_device(std::string_view name);

}  // namespace lockstep
