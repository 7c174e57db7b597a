// The backends that work between hosts: "gloo" and "mpi", and "hybrid" with a
// way of its own.
//
// One implementation of every operation over messages, which a plug-in moves:
// the same elements go to the same places, and are added in the same order by
// the same kernels as on every other backend. docs/design/wire.md tells how.
//
// Threads: as Backend. Whoever waits carries collectives out; one thread a
// group
//          does so while nobody waits.
// Errors:  as Backend; InvalidArgument from making one when its plug-in is not
//          there, or `mpi` was not started by mpirun.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/comm/wire/collective_way.h"
#include "lockstep/store/store.h"

namespace lockstep {

// All ranks of the group call this with the same store and identity.name.
// `way`, if any, carries out what it takes.
std::shared_ptr<Backend> make_wire_backend(
    const std::string& plugin, const GroupIdentity& identity,
    std::shared_ptr<Store> store, const Settings& settings,
    std::unique_ptr<CollectiveWay> way = nullptr);

}  // namespace lockstep
