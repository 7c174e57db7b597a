// How ranks started by mpirun find a store when the environment does not say
// where rank 0 is: rank 0 serves a store, and MPI carries its address to the
// other ranks.
//
// It works for every backend of the group, and needs the plug-in `mpi`.
//
// Threads: called once by each rank, from any thread.
// Errors:  InvalidArgument with the next step if MPI cannot be used; Timeout if
//          not all ranks come.
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

// Requires membership.needs_bootstrap.
Bootstrap bootstrap_by_mpi(const Membership& membership,
                           const Settings& settings);

}  // namespace lockstep
