// The GPUs of this host and their load, from NVML, the library of NVIDIA's
// driver. It is loaded on demand and needs no CUDA.
//
// Threads: any thread.
// Errors:  none; an unavailable value is left out, or `problem` explains it.
// Source:  NVML's reference manual.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/environment.h"

namespace lockstep {

struct GpuProcess {
  unsigned pid = 0;  // in the host's own numbering
  std::optional<std::uint64_t>
      bytes{};  // nothing if the driver does not report it
};

struct GpuState {
  int index = 0;       // NVML's, in the order of PCI addresses
  std::string name{};  // "NVIDIA H100 80GB HBM3"
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::optional<unsigned> busy_percent{};  // over about the last second
  std::optional<unsigned> celsius{};
  std::vector<GpuProcess> processes{};  // compute processes
};

struct GpuInventory {
  std::string driver{};          // its version; "" without one
  std::vector<GpuState> gpus{};  // all of the host, visible or not
  std::string problem{};         // why the list is empty; "" on success
};

inline constexpr const char* kNvml = "libnvidia-ml.so.1";

GpuInventory look_at_gpus(const char* library = kNvml);

// "NVIDIA H100 80GB HBM3, 12.3 of 79.6 GiB used, 87 % busy, 54 °C, 2
// processes".
std::string describe(const GpuState& gpu);

// How many of `count` GPUs a process sees when CUDA_VISIBLE_DEVICES is
// `visible` (nothing: unset). Like CUDA, it stops at the first entry that names
// no device.
int count_visible(int count, const std::optional<std::string>& visible);

// How many GPUs a process sees in the environment of `lookup`.
int visible_gpus(const EnvironmentLookup& lookup);

}  // namespace lockstep
