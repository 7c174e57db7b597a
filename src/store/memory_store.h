// The store of ranks that are threads of one process: memory:.
//
// Threads: every method may be called from any thread.
// Errors:  those of Store. Its last will is never executed: every possible
//          reader goes with the store.
#pragma once

#include <memory>

#include "lockstep/store/store.h"

namespace lockstep {

std::shared_ptr<Store> make_memory_store();

}  // namespace lockstep
