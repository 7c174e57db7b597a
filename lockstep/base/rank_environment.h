// Where a process stands among the ranks, as whatever started it says in the
// environment: torchrun and `lockstep run`, mpirun, or srun.
//
// The first of these that set anything counts, and alone: a launcher that was
// itself started by srun passes srun's variables on, which then say nothing
// about its workers.
//
// Threads: pure functions, but for what the lookup does.
// Errors:  InvalidArgument for numbers that are none or contradict each other.
// Source:  the manuals of mpirun(1) and srun(1); PMI_RANK and PMI_SIZE are what
//          MPICH's and Intel's mpirun set.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/environment.h"

namespace lockstep {

enum class StartedBy { kNone, kTorchrun, kMpirun, kSrun };

// "torchrun", …; "none".
std::string_view name_of(StartedBy launcher);

struct RankEnvironment {
  StartedBy launcher = StartedBy::kNone;
  std::optional<int> rank;              // 0 … world_size - 1
  std::optional<int> world_size;        // at least 1
  std::optional<int> local_rank;        // within this host
  std::optional<int> local_world_size;  // ranks of this host
  // Where rank 0 is, and a port for it: MASTER_ADDR and MASTER_PORT. Under srun
  // the first host of the step, and a port made of the job's and the step's
  // number; where torchrun's agent holds MASTER_PORT, one made of that: from
  // 12000 to 27999, below those that kernels hand out.
  std::optional<std::string> master_address;
  std::optional<int> master_port;  // 0 … 65535
  // What tells this job from others, for example "slurm 71.0"; "" where nothing
  // does.
  std::string job;
};

RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);

// The first host of a list as Slurm writes them: "node01" of
// "node[01-03,07],gpu4".
std::string first_host(std::string_view list);

}  // namespace lockstep
