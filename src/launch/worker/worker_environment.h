// The environment variables of a worker: torchrun's and Lockstep's own.
//
// Errors:  none thrown.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// The settings that all workers of a job share.
struct JobEnvironment {
  int workers = 1;
  // Whether workers receive their rank and the rendezvous address. False for a
  // program that starts its own ranks: it gets the inherited environment
  // without launchers' variables.
  bool workers_are_ranks = true;
  std::string store_url;          // LOCKSTEP_STORE; empty: no store
  std::string token;              // LOCKSTEP_TOKEN
  std::uint16_t master_port = 0;  // MASTER_PORT, free for rank 0 to bind
  // LOCKSTEP_DUMP_DIR; empty: the user's setting, if any.
  std::string dump_directory = {};
  // LOCKSTEP_PLUGIN_PATH, unless the user has set it; empty: not set.
  std::string plugin_folder = {};
  // Put first in LD_LIBRARY_PATH; empty: no change.
  std::string library_folder = {};
  // OMP_NUM_THREADS; overrides the user's environment. Nothing: like torchrun,
  // 1 when there are several workers and the user has not set it.
  std::optional<int> threads;
};

// The environment of worker `rank` as "NAME=value": `inherited`, with the
// launcher variables of Lockstep and torchrun removed or replaced.
std::vector<std::string> worker_environment(
    std::span<const std::string> inherited, const JobEnvironment& job,
    int rank);

// Makes the loader search `folder` first; "" changes nothing.
void prepend_library_folder(std::vector<std::string>& variables,
                            const std::string& folder);

// The environment of this process. Must not race with setenv.
std::vector<std::string> current_environment();

}  // namespace lockstep
