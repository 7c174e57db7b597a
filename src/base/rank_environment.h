// A process's rank, world size and rendezvous address, read from the
// environment that torchrun, `lockstep run`, mpirun or srun sets.
//
// Only the first of these that has set a variable counts. A launcher that srun
// started passes srun's variables on, and they do not describe its workers.
//
// Threads: any thread on which the lookup may run.
// Errors:  InvalidArgument for malformed or contradictory numbers.
// Source:  the manuals of mpirun(1) and srun(1); hydra, the mpirun of MPICH and
//          of Intel MPI, sets PMI_RANK, PMI_SIZE and PMI_FD.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/environment.h"

namespace lockstep {

// kMpirun is Open MPI's, kHydra that of MPICH and of Intel MPI.
enum class StartedBy { kNone, kTorchrun, kMpirun, kHydra, kSrun };

// "torchrun", …; "none".
std::string_view name_of(StartedBy launcher);

struct RankEnvironment {
  StartedBy launcher = StartedBy::kNone;
  std::optional<int> rank;              // 0 … world_size - 1
  std::optional<int> world_size;        // at least 1
  std::optional<int> local_rank;        // within this host
  std::optional<int> local_world_size;  // ranks of this host
  // The address of rank 0 and a port on its host: MASTER_ADDR, an IPv6 number
  // without its brackets, and MASTER_PORT.
  // Under srun they are the first host of the step and a port derived from the
  // job and step numbers. Where torchrun's agent holds MASTER_PORT, the port is
  // derived from that one. Derived ports lie between 12000 and 27999, below the
  // kernel's ephemeral range.
  std::optional<std::string> master_address;
  std::optional<int> master_port;  // 0 … 65535
  // Ports that take the place of a derived one, in this order, because another
  // program may hold it; empty where MASTER_PORT is the port.
  std::vector<int> more_ports;
  // Distinguishes this job from others, for example "slurm 71.0"; "" when the
  // launcher gives no job id. Not empty where the port is derived.
  std::string job;
  // The descriptor at which hydra answers the protocol PMI-1: PMI_FD. Only
  // where `launcher` is kHydra.
  std::optional<int> pmi_descriptor;
};

RankEnvironment read_rank_environment(const EnvironmentLookup& environment);

// Whether a launcher sets `variable` for each job, so that a process of another
// job must not inherit it. Those of an outer torchrun would make a PyTorch
// program look for that torchrun's agent at MASTER_PORT.
bool is_set_per_job(std::string_view variable);

// The first host of a Slurm host list: "node01" of "node[01-03,07],gpu4".
std::string first_host(std::string_view list);

}  // namespace lockstep
