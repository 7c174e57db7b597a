// How ranks that mpirun started find a store when nothing says where rank 0 is:
// rank 0 serves one, and MPI tells the others its address.
//
// Whatever backend the group then has. The plug-in `mpi` is needed for it.
//
// Threads: called once by each rank, from any thread.
// Errors:  InvalidArgument where MPI cannot be used, with what to do instead;
//          Timeout when not all ranks come.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/settings.h"
#include "lockstep/comm/membership.h"
#include "lockstep/store/tcp_store_server.h"

namespace lockstep {

struct Bootstrap {
  std::unique_ptr<TcpStoreServer> server;  // on rank 0
  std::string store_url;
  std::string token;  // the job's, or a random one
};

// For a `membership` that needs it.
Bootstrap bootstrap_by_mpi(const Membership& membership,
                           const Settings& settings);

}  // namespace lockstep
