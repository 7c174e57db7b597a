// The client of a TcpStoreServer: tcp://host:port.
//
// Threads: any thread may call; a waiting call does not block others.
// Errors:  those of Store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/store/store.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {

// See open_store().
std::shared_ptr<Store> open_tcp_store(TcpEndpoint endpoint,
                                      const StoreOptions& options);

// A store whose port follows from a job's id, so that other programs, and the
// stores of other jobs, may hold it.
struct DerivedEndpoint {
  TcpEndpoint first;
  // Ports that take the place of the first, in this order.
  std::vector<int> more_ports;
  std::string job;  // TcpStoreServerOptions::job
};

// With options.serve it serves at the first port that is free; InvalidArgument
// if an earlier one has a server of the same job. Otherwise it finds the server
// (see server_search.h).
std::shared_ptr<Store> open_tcp_store(const DerivedEndpoint& endpoint,
                                      const StoreOptions& options);

}  // namespace lockstep
