// What `lockstep run` would do: the table of --dry-run.
//
// Threads: the main thread.
// Errors:  CannotExecute where this host has no such program.
#pragma once

#include <span>
#include <string>

#include "src/launch/launcher/launcher.h"
#include "src/launch/nodes/host_list.h"

namespace lockstep {

// This host's workers: a line each, with its cores and compute threads; on
// several hosts by local rank, since the ranks follow from who comes.
std::string describe_plan(const LaunchOptions& launch, bool is_only_host);

// The hosts of -H, with the ranks of each.
std::string describe_hosts(std::span<const HostSlots> hosts);

}  // namespace lockstep
