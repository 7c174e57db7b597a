// The client of a TcpStoreServer: tcp://host:port.
//
// Threads: any thread may call; a waiting call does not block others.
// Errors:  those of Store.
#pragma once

#include <memory>

#include "lockstep/store/store.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {

// See open_store().
std::shared_ptr<Store> open_tcp_store(TcpEndpoint endpoint,
                                      const StoreOptions& options);

}  // namespace lockstep
