// The shared-memory backend: the ranks of one host, as processes or threads.
//
// Small operations travel in the control block, in one round. Large ones work
// in place on buffers in the ranks' heaps (allocate() returns such buffers); if
// a rank's buffers lie elsewhere, the elements go through a staging area, piece
// by piece. docs/design/shm.md has the protocol.
//
// Threads: those of Backend. A waiting thread carries the operations forward;
//          one thread per group does so while none waits.
// Errors:  those of Backend. After an error no late peer can write to the
//          operation's buffers any more; if the kernel does not allow that, an
//          Error says so.
#pragma once

#include <memory>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// All ranks of the group call this with the same store and identity.name.
std::shared_ptr<Backend> make_shm_backend(const GroupIdentity& identity,
                                          Store& store,
                                          const Settings& settings);

}  // namespace lockstep
