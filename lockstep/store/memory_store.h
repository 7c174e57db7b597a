// The store of ranks that are threads of one process: memory:.
//
// Threads: every method may be called from any thread.
// Errors:  Store's. Its last will is executed by nobody: when the store goes,
//          so does everyone who could see it.
#pragma once

#include <memory>

#include "lockstep/store/store.h"

namespace lockstep {

std::shared_ptr<Store> make_memory_store();

}  // namespace lockstep
