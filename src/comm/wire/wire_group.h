// Connects the ranks of a wire group.
//
// Threads: called once by each rank, from any thread.
// Errors:  those of make_wire_backend.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

// Makes the core of `identity`'s group, over the plug-in called `plugin`.
std::unique_ptr<WireCore> meet_on_the_wire(const std::string& plugin,
                                           const GroupIdentity& identity,
                                           std::shared_ptr<Store> store,
                                           const Settings& settings);

}  // namespace lockstep
