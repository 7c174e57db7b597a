// Connects the ranks of a wire group.
//
// Threads: called once by each rank, from any thread.
// Errors:  those of make_wire_backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

// Makes the core of `identity`'s group, over the plug-in called `plugin`. The
// ranks `first`, each of which names this rank too, are connected then, and the
// others when the first message between them is posted.
std::unique_ptr<WireCore> meet_on_the_wire(const std::string& plugin,
                                           const GroupIdentity& identity,
                                           const std::vector<int>& first,
                                           std::shared_ptr<Store> store,
                                           const Settings& settings);

}  // namespace lockstep
