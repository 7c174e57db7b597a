// What backends share about the ranks that a rank waits for: how often it
// checks whether they are alive, and a word for one that has left.
#pragma once

#include <chrono>

namespace lockstep {

// A check on this host: a system call.
inline constexpr std::chrono::milliseconds kPeerCheckInterval{50};

// A check between hosts: a question to the store, which serves all ranks.
inline constexpr std::chrono::milliseconds kStoreCheckInterval{200};

// Why a rank is gone that left the group in good order.
inline constexpr const char* kLeftGroup = "it left the group";

}  // namespace lockstep
