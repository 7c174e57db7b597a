// Every rank of a group tells every other something before the group exists.
//
// Threads: called once by each rank, from any thread.
// Errors:  Timeout naming the ranks that never came; the store's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

// How long ranks are waited for.
struct CardWait {
  Deadline deadline;
  // Called now and then meanwhile: throws where there is nobody to wait for.
  std::function<void()> look_around{};
};

// What each rank of `identity`'s group gave as `mine`. `subject` tells several
// such exchanges of one group apart.
std::vector<std::string> exchange_cards(const GroupIdentity& identity,
                                        const std::string& subject,
                                        const std::string& mine, Store& store,
                                        const CardWait& wait);

}  // namespace lockstep
