// The reference backend: every collective in its most obvious form, over the
// store. Slow, and the oracle that every other backend is tested against.
//
// Each rank puts its elements into the store, reads everybody's and computes
// the result by itself, element by element. Long buffers go in chunks, which
// the last reader erases. Its arithmetic shares no code with what it judges.
//
// Threads: as Backend. Operations run inside start().
// Errors:  as Backend; a rank that dies is noticed where the store can see it
//          (its last will), otherwise by the timeout.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

// All ranks of the group call this with the same store and identity.name.
std::shared_ptr<Backend> make_reference_backend(const GroupIdentity& identity,
                                                std::shared_ptr<Store> store);

}  // namespace lockstep
