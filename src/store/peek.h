// Reads a key of a store without waiting for it.
//
// Threads: any thread.
// Errors:  those of Store::compare_and_set().
#pragma once

#include "lockstep/store/store.h"

namespace lockstep {

// The value of `key`, empty if it does not exist: a compare_and_set that cannot
// apply returns it and changes nothing.
inline Bytes peek(Store& store, std::string_view key, Deadline deadline) {
  const Bytes never = to_bytes("no key has this value");
  return store.compare_and_set(key, never, never, deadline);
}

}  // namespace lockstep
