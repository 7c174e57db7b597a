// The shared-memory backend: the ranks of one host, as processes or threads.
//
// Small operations travel in the control block, in one round. Large ones work
// in place on buffers that lie in the ranks' heaps (allocate() hands those
// out); where some rank's buffers lie elsewhere, they go through a staging
// area, piece by piece. docs/design/shm.md has the protocol.
//
// Threads: as Backend. Whoever waits carries the operations forward; one thread
//          a group does so while nobody waits.
// Errors:  as Backend. After an error no late peer can write to the buffers of
//          the operation any more; an Error that says so where the kernel does
//          not allow that.
#pragma once

#include <memory>

#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

// All ranks of the group call this with the same store and identity.name.
std::shared_ptr<Backend> make_shm_backend(const GroupIdentity& identity,
                                          Store& store,
                                          const Settings& settings);

}  // namespace lockstep
