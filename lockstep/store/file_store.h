// The store of ranks that share a file system and nothing else: file:///path.
//
// Threads: every method may be called from any thread; a call that waits holds
//          up no other.
// Errors:  Store's, and those of FileLog. Its last will is executed by the
//          destructor, and by nobody when the process dies.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep {

// See open_store(). The file is deleted when the last store that has it open is
// destroyed.
std::shared_ptr<Store> open_file_store(const std::string& path,
                                       const StoreOptions& options);

}  // namespace lockstep
