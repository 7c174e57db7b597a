// The reference backend: every collective in its most obvious form, over the
// store. It is slow; the tests compare every other backend with it.
//
// Each rank puts its elements into the store, reads those of all ranks and
// computes the result by itself, element by element. Long buffers go in chunks,
// which the last reader erases. Its arithmetic shares no code with the other
// backends.
//
// Threads: those of Backend. Operations run inside start().
// Errors:  those of Backend; the store's last will reports a dead rank where it
//          can, otherwise the timeout does.
#pragma once

#include <memory>

#include "lockstep/store/store.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// All ranks of the group call this with the same store and identity.name.
std::shared_ptr<Backend> make_reference_backend(const GroupIdentity& identity,
                                                std::shared_ptr<Store> store);

}  // namespace lockstep
