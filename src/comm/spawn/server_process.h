// The two kinds of process behind SpawnServer: the server, and the one that
// watches the ranks of a call. Each has one thread.
//
// The server gets one message per call, with these descriptors: the call's
// socket, the request, standard output, standard error and the working folder.
// The watching process sends an empty answer when it starts, and its answer
// when all ranks have ended.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "src/comm/spawn/rank_watch.h"

namespace lockstep::internal {

inline constexpr std::size_t kJobDescriptors = 5;

// In a child of the program: forks the server and exits. `socket` and the
// handle `program` are the only descriptors that the server keeps.
[[noreturn]] void start_server_process(int socket, int program);

// Throws the error that the watching process met.
std::optional<FailedRank> read_answer(std::span<const std::byte> answer);

}  // namespace lockstep::internal
