// Every rank of a group sends every other rank a value before the group exists.
//
// A rank makes the same few calls whatever the group's size: it sets its value
// and counts itself; the last rank to do so reads all values and sets a key to
// them, for which the others wait and which they read.
//
// Threads: called once by each rank, from any thread.
// Errors:  Timeout naming the ranks that never came; the store's errors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/store/store.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// How long a rank waits for the others.
struct GatherWait {
  Deadline deadline;
  // Called regularly during the wait: throws when a rank cannot come any more.
  std::function<void()> check_peers{};
};

// Returns what each rank of `identity`'s group passed as `mine`; all together
// must fit a store's value, 16 MiB. `subject`
// distinguishes several exchanges of one group.
std::vector<std::string> store_all_gather(const GroupIdentity& identity,
                                          const std::string& subject,
                                          const std::string& mine, Store& store,
                                          const GatherWait& wait);

}  // namespace lockstep
