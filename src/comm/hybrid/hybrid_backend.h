// The backend "hybrid": shared memory inside each host, messages between them.
//
// Large all_reduce and broadcast cross the wire once per host, and all ranks of
// a host send in parallel (HybridWay); all other operations use the wire alone.
// A group on one host is plain `shm`, and a group with a single rank per host
// is plain `gloo` or `mpi`: name() returns the actual backend.
//
// Threads: those of Backend.
// Errors:  those of make_shm_backend and make_wire_backend.
#pragma once

#include <memory>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// Settings::wire names the engine between hosts. All ranks of the group call
// this with the same store and identity.name.
std::shared_ptr<Backend> make_hybrid_backend(const GroupIdentity& identity,
                                             std::shared_ptr<Store> store,
                                             const Settings& settings);

}  // namespace lockstep
