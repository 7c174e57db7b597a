// The client of a TcpStoreServer: tcp://host:port.
//
// Threads: every method may be called from any thread; a call that waits holds
//          up no other.
// Errors:  Store's.
#pragma once

#include <memory>

#include "lockstep/store/store.h"
#include "lockstep/store/tcp_endpoint.h"

namespace lockstep {

// See open_store().
std::shared_ptr<Store> open_tcp_store(TcpEndpoint endpoint,
                                      const StoreOptions& options);

}  // namespace lockstep
