// The devices that ranks train on, or evaluate, by name.
//
// Threads: functions of their arguments, and of what devices there are.
// Errors:  InvalidArgument for a name that is none, for a LibTorch without
//          CUDA, a machine without a driver, and a device that is not there.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// "cpu", "cuda" (its first device) or "cuda:N".
c10::Device training_device(std::string_view name);

// Those of so many replicas of this process: slots of the CPU, or the GPU of
// this name and those that follow it.
std::vector<c10::Device> training_devices(std::string_view name, int replicas);

// What this process has held at most on each of them, for people:
// "memory at most: cuda:0 3.1 GiB, cuda:1 2.9 GiB", of LibTorch's allocator.
// Slots of the CPU share what was resident of the process: "cpu 0.4 GiB".
std::string peak_memory_text(const std::vector<c10::Device>& devices);

// Lets GPUs take kernels that give the same bits each time, where LibTorch has
// such, and warn where not; for the whole process.
void use_deterministic_kernels();

}  // namespace lockstep
