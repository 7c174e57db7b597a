// What a rank of spawn() needs to know, as bytes in a file in memory: the
// function, the arguments and the environment.
//
// A function is named by the file that it was loaded from and its place in it,
// because an executable that runs anew lies at other addresses.
//
// Threads: one thread at a time; pack() must not race with setenv or dlclose.
// Errors:  SystemError when there is no memory; InvalidArgument for a function
//          that this process has not loaded.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/spawn.h"
#include "src/net/file_descriptor.h"

namespace lockstep::internal {

struct SpawnRequest {
  SpawnCall call{};
  int ranks = 1;
  std::chrono::nanoseconds grace{};
  std::vector<std::string> environment{};  // "NAME=value"; of every rank
};

// A descriptor of at least 3, which a child can inherit.
FileDescriptor pack(const SpawnRequest& request);
SpawnRequest unpack(const FileDescriptor& file);

// `inherited` without the variables of launchers, and with those that all ranks
// of one job share.
std::vector<std::string> shared_environment(
    const std::vector<std::string>& inherited, int ranks,
    const std::string& store_url, const std::string& token,
    std::uint16_t master_port);

// The variables that differ from rank to rank.
std::vector<std::string> rank_variables(int rank);

// The same descriptor under a number of at least 3. A program may have closed
// its standard streams, whose numbers the kernel then gives to new descriptors.
FileDescriptor above_standard(FileDescriptor descriptor);

}  // namespace lockstep::internal
