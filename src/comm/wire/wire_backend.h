// The backends that work between hosts: "gloo" and "mpi", and "hybrid" with its
// own CollectiveWay.
//
// One implementation of every operation over messages, which a plug-in moves.
// The same elements go to the same places, and are added in the same order by
// the same kernels as on every other backend. See docs/design/wire.md.
//
// Threads: those of Backend. A waiting thread carries collectives out; one
//          thread per group does so while none waits.
// Errors:  those of Backend; making one throws InvalidArgument when its plug-in
//          is missing, or when mpirun did not start `mpi`'s processes.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/operation/backend.h"
#include "src/comm/wire/collective_way.h"

namespace lockstep {

// All ranks of the group call this with the same store and identity.name. `way`
// (may be null) carries out the operations that it takes.
std::shared_ptr<Backend> make_wire_backend(
    const std::string& plugin, const GroupIdentity& identity,
    std::shared_ptr<Store> store, const Settings& settings,
    std::unique_ptr<CollectiveWay> way = nullptr);

}  // namespace lockstep
