// How ranks started by mpirun find a store when the environment does not say
// where rank 0 is: rank 0 serves a store, and mpirun carries its address to the
// other ranks. Open MPI's does so through MPI, which needs the plug-in `mpi`,
// and hydra, that of MPICH and of Intel MPI, through PMI.
//
// It works for every backend of the group.
//
// Threads: called once by each rank, from any thread. hydra serves one call per
//          process, so the caller keeps the result.
// Errors:  InvalidArgument with the next step if mpirun cannot carry the
//          address; Timeout if not all ranks come or mpirun does not answer;
//          NetworkError if mpirun ends the job.
#pragma once

#include <memory>
#include <string>

#include "src/base/settings.h"
#include "src/comm/group/membership.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {

struct Bootstrap {
  std::unique_ptr<TcpStoreServer> server;  // on rank 0
  std::string store_url;
  std::string token;  // the job's, or a random one
};

// Requires membership.needs_bootstrap. Every process that mpirun started must
// call it.
Bootstrap bootstrap_by_mpirun(const Membership& membership,
                              const Settings& settings);

}  // namespace lockstep
