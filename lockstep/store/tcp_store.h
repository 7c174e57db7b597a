// The client of a TcpStoreServer: tcp://host:port.
//
// Threads: every method may be called from any thread; a call that waits holds
//          up no other.
// Errors:  Store's.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep {

// Where a server listens. An IPv6 number stands here without brackets.
struct TcpEndpoint {
  std::string host;
  int port = 0;
};

// See open_store().
std::shared_ptr<Store> open_tcp_store(TcpEndpoint endpoint,
                                      const StoreOptions& options);

}  // namespace lockstep
