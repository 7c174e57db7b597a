// The devices on which ranks train or evaluate, by name.
//
// Errors:  InvalidArgument for an unknown name, a LibTorch without CUDA, a
//          machine without a driver, and a device that does not exist.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// "cpu", "cuda" (its first device) or "cuda:N".
c10::Device training_device(std::string_view name);

// One device per replica of this process: slots of the CPU, or the GPU of this
// name and the ones after it.
std::vector<c10::Device> training_devices(std::string_view name, int replicas);

// This process's peak memory on each device, for people: "memory at most:
// cuda:0 3.1 GiB, cuda:1 2.9 GiB", of LibTorch's allocator. For slots of the
// CPU it is the peak resident size: "cpu 0.4 GiB".
std::string peak_memory_text(const std::vector<c10::Device>& devices);

// Selects GPU kernels that give the same bits each time, where LibTorch has
// one, and warns elsewhere; for the whole process.
void use_deterministic_kernels();

}  // namespace lockstep
