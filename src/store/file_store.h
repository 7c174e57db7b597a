// The store of ranks that share only a file system: file:///path.
//
// Threads: any thread may call; a waiting call does not block others.
// Errors:  those of Store and FileLog. Only the destructor executes the last
//          will; the will is lost when the process dies.
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
