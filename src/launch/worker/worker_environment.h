// The environment variables of a worker: torchrun's and Lockstep's own.
//
// Errors:  InvalidArgument from worker_environment().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// The settings that all workers of this host share.
struct JobEnvironment {
  int workers = 1;  // on this host
  // This host's part of a job on several hosts: the rank of its first worker,
  // and the number of workers on all hosts, 0 where this is the only one.
  int first_rank = 0;
  int world_size = 0;
  int group_rank = 0;  // of this host among the hosts
  int group_world_size = 1;
  // These workers join a job that re-forms in place and runs already.
  bool joins_late = false;
  std::string master_address = "127.0.0.1";
  // How often the workers were started again, and may be.
  int restarts = 0;
  int max_restarts = 0;
  std::string run_id = "none";   // TORCHELASTIC_RUN_ID
  std::string role = "default";  // ROLE_NAME
  // LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES has the one GPU
  // of its place on the host: of the inherited ones, if these are named.
  bool virtual_local_rank = false;
  // Whether workers receive their rank and the rendezvous address. False for a
  // program that starts its own ranks: it gets the inherited environment
  // without launchers' variables.
  bool workers_are_ranks = true;
  std::string store_url = {};     // LOCKSTEP_STORE; empty: no store
  std::string token = {};         // LOCKSTEP_TOKEN
  std::uint16_t master_port = 0;  // MASTER_PORT, free for rank 0 to bind
  // LOCKSTEP_DUMP_DIR; empty: the user's setting, if any.
  std::string dump_directory = {};
  // The folder of the files in which workers tell the launcher why they fail,
  // TORCHELASTIC_ERROR_FILE and LOCKSTEP_FAULT_FILE; empty: not set.
  std::string notes_directory = {};
  // LOCKSTEP_STEPS_FILE, with a slot for each worker, and LOCKSTEP_STEPS_SLOT;
  // empty: not set.
  std::string steps_file = {};
  // LOCKSTEP_PLUGIN_PATH, unless the user has set it; empty: not set.
  std::string plugin_folder = {};
  // Put first in LD_LIBRARY_PATH; empty: no change.
  std::string library_folder = {};
  // OMP_NUM_THREADS; overrides the user's environment. Nothing: like torchrun,
  // 1 when there are several workers and the user has not set it.
  std::optional<int> threads;
};

// The names of the files in which workers record an exception and a FaultNote
// begin with these; a rank and ".json" follow.
inline constexpr const char* kExceptionStart = "error-";
inline constexpr const char* kFaultStart = "fault-";

// The files of the worker `rank`; empty: it has none.
std::string exception_file(const JobEnvironment& job, int rank);
std::string fault_file(const JobEnvironment& job, int rank);

// The number of workers of the whole job.
int world_size_of(const JobEnvironment& job);

// The environment of this host's worker `local_rank` as "NAME=value":
// `inherited`, with the launcher variables of Lockstep and torchrun removed or
// replaced. InvalidArgument where CUDA_VISIBLE_DEVICES has fewer GPUs than
// workers need by their virtual local ranks.
std::vector<std::string> worker_environment(
    std::span<const std::string> inherited, const JobEnvironment& job,
    int local_rank);

// Makes the loader search `folder` first; "" changes nothing.
void prepend_library_folder(std::vector<std::string>& variables,
                            const std::string& folder);

// The environment of this process. Must not race with setenv.
std::vector<std::string> current_environment();

}  // namespace lockstep
