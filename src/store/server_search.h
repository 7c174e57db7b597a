// Finds a job's store where it may serve at one of several ports, because
// other programs may hold the earlier ones.
//
// A client tries the ports in turn, round and round: the server may start
// later. It goes on to the next port where no process listens, where what
// listens says nothing or is no store of this job, and where the connection
// breaks.
//
// Threads: any thread.
// Errors:  Timeout naming what was found at each port; SystemError when the
//          process is out of file descriptors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/store/tcp_connection.h"

namespace lockstep {

struct ServerPlaces {
  std::string host;
  std::vector<int> ports;  // in the order in which the server tries them
};

struct FoundServer {
  int port = 0;
  std::unique_ptr<TcpConnection> connection;
};

FoundServer find_server(const ServerPlaces& places,
                        const ClientIdentity& identity, Deadline deadline);

}  // namespace lockstep
