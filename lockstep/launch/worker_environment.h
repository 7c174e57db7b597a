// The environment variables of a worker, as torchrun has them and with our own.
//
// Errors:  none thrown.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// What the workers of a job have in common.
struct JobEnvironment {
  int workers = 1;
  // Whether workers learn which rank they are, and where to meet. False for a
  // program that has ranks of its own: it gets what was inherited, but for the
  // variables of launchers.
  bool workers_are_ranks = true;
  std::string store_url;          // LOCKSTEP_STORE; empty: none is served
  std::string token;              // LOCKSTEP_TOKEN
  std::uint16_t master_port = 0;  // MASTER_PORT, free for rank 0 to bind
  // LOCKSTEP_DUMP_DIR; empty: the user's, if there is one.
  std::string dump_directory = {};
  // LOCKSTEP_PLUGIN_PATH, where the user has set none; empty: nor is it set.
  std::string plugin_folder = {};
  // Comes first in LD_LIBRARY_PATH; empty: that stays as it is.
  std::string library_folder = {};
  // OMP_NUM_THREADS, whatever the user's environment says. Nothing: as torchrun
  // does, 1 when there are several workers and the user has not set it.
  std::optional<int> threads;
};

// "NAME=value" for all that worker `rank` gets: `inherited`, with the variables
// of launchers, ours and torchrun's, taken out or replaced.
std::vector<std::string> worker_environment(
    std::span<const std::string> inherited, const JobEnvironment& job,
    int rank);

// Lets the loader look in `folder` first; "" changes nothing.
void prepend_library_folder(std::vector<std::string>& variables,
                            const std::string& folder);

// The environment of this process. Must not race with setenv.
std::vector<std::string> current_environment();

}  // namespace lockstep
