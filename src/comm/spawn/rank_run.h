// Runs spawn()'s function in the process of one rank, and tells the process
// that watches it how that went.
//
// Errors:  the function's, as a record in the result pipe.
#pragma once

#include "src/comm/spawn/spawn_request.h"
#include "src/net/file_descriptor.h"

namespace lockstep::internal {

// The first byte of the record; after it comes the exception's message.
constexpr char kReturned = 'R';
constexpr char kLostPeer = 'P';  // PeerFailure
constexpr char kThrew = 'E';
constexpr std::size_t kMaxRecordBytes = 16 << 10;

enum class StartedAs { kForked, kExecuted };

// Runs the request in `file`. A rank that was executed ends as by exit(), and a
// forked one without the destructors of its parent's static objects.
[[noreturn]] void run_rank(const FileDescriptor& file, int rank,
                           const FileDescriptor& result, StartedAs started);

}  // namespace lockstep::internal
