// Finds a job's store where it may serve at one of several ports, because
// other programs may hold the earlier ones.
//
// A client tries the ports in turn, and at each the addresses of the host,
// round and round: the server may start later. It goes on to the next where no
// process listens, where the packets vanish, where what listens says nothing or
// is no store of this job, and where the connection breaks.
//
// Threads: any thread.
// Errors:  Timeout naming what was found at each port; SystemError when the
//          process is out of file descriptors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/net/socket_address.h"
#include "src/store/tcp_connection.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {

struct ServerPlaces {
  std::string host;
  std::vector<int> ports;  // in the order in which the server tries them
  // Of the host's name.
  std::vector<SocketAddress> (*resolver)(const std::string& host,
                                         int port) = &resolve;
};

struct FoundServer {
  TcpEndpoint endpoint;  // with the number of the address that answered
  std::unique_ptr<TcpConnection> connection;
};

FoundServer find_server(const ServerPlaces& places,
                        const ClientIdentity& identity, Deadline deadline);

}  // namespace lockstep
