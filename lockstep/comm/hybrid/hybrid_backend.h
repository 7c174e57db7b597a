// The backend "hybrid": shared memory inside each host, messages between them.
//
// Large all_reduce and broadcast cross the wire once a host, with all ranks of
// a host at it in parallel (HybridWay); everything else goes over the wire as
// it would without. A group on one host is plain `shm`, and one that has a
// single rank on each host plain `gloo` or `mpi`: backends say so themselves.
//
// Threads: as Backend.
// Errors:  as make_shm_backend and make_wire_backend.
#pragma once

#include <memory>

#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Settings::wire names the engine between hosts. All ranks of the group call
// this with the same store and identity.name.
std::shared_ptr<Backend> make_hybrid_backend(const GroupIdentity& identity,
                                             std::shared_ptr<Store> store,
                                             const Settings& settings);

}  // namespace lockstep
