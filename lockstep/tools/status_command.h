// `lockstep status`: what this host is doing now: how busy its cores are, how
// much of its memory is used, and each GPU with the processes on it.
//
// The command exits with 0, also where there is no GPU.
//
// Threads: any thread.
// Errors:  none: what cannot be found out is left out, or said as a problem.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/launch/gpu_inventory.h"
#include "lockstep/tools/report_format.h"

namespace lockstep {

struct StatusOptions {
  ReportFormat format = ReportFormat::kText;
};

struct HostStatus {
  std::string host{};
  int cores = 0;    // that this process may use
  double load = 0;  // threads that ran or wanted to, mean of the last minute
  std::uint64_t total_bytes = 0;      // memory of the host
  std::uint64_t available_bytes = 0;  // of it, as the kernel estimates
  GpuInventory gpus{};
  // The names of the processes on GPUs, where this one may see them.
  std::map<unsigned, std::string> programs{};
};

// Looks at all of it; takes well under a second.
HostStatus look_at_host();

std::string to_text(const HostStatus& status);
// One object; sizes in bytes, "gpus" a list, with null for what the driver does
// not say; "problem" is why there are none, or "".
std::string to_json(const HostStatus& status);

}  // namespace lockstep
