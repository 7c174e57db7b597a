// Which GPUs this host has, and what they are doing: by NVML, the library of
// NVIDIA's driver, which is loaded for the question and needs no CUDA.
//
// Threads: may be called from any thread.
// Errors:  none: what cannot be found out is left out, or said in `problem`.
// Source:  NVML's reference manual; its functions are called by their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep {

struct GpuProcess {
  unsigned pid = 0;  // in the host's own numbering
  std::optional<std::uint64_t>
      bytes{};  // nothing where the driver does not say
};

struct GpuState {
  int index = 0;       // NVML's, in the order of PCI addresses
  std::string name{};  // "NVIDIA H100 80GB HBM3"
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::optional<unsigned> busy_percent{};  // of the last second or so
  std::optional<unsigned> celsius{};
  std::vector<GpuProcess> processes{};  // that compute
};

struct GpuInventory {
  std::string driver{};          // its version; "" without one
  std::vector<GpuState> gpus{};  // all of the host, whatever a process may use
  std::string problem{};         // why there are none; "" where all went well
};

inline constexpr const char* kNvml = "libnvidia-ml.so.1";

GpuInventory look_at_gpus(const char* library = kNvml);

// "NVIDIA H100 80GB HBM3, 12.3 of 79.6 GiB used, 87 % busy, 54 °C, 2
// processes".
std::string describe(const GpuState& gpu);

// How many of `count` GPUs a process sees whose CUDA_VISIBLE_DEVICES is
// `visible`; nothing means that it is not set. As CUDA reads it: up to the
// first entry that names no device.
int count_visible(int count, const std::optional<std::string>& visible);

// How many a process sees whose environment `lookup` reads.
int visible_gpus(const EnvironmentLookup& lookup);

}  // namespace lockstep
