// How often a waiting rank checks whether the ranks that it waits for are
// alive.
#pragma once

#include <chrono>

namespace lockstep {

// A check on this host: a system call.
inline constexpr std::chrono::milliseconds kPeerCheckInterval{50};

// A check between hosts: a question to the store, which serves all ranks.
inline constexpr std::chrono::milliseconds kStoreCheckInterval{200};

}  // namespace lockstep
