// How the ranks of a contender answer a driver's questions about collectives,
// the same for ours and for its peers: only the Engine differs.
//
// A question reads "COLLECTIVE MEMORY BYTES SECONDS ROUNDS": a collective's
// name or copy; shared or plain, for copy memcpy or streaming; of how many
// bytes, as rounded_bytes() takes them; for about how long, and how many rounds
// at least. float32 and sum. measure_collective() says what is timed and
// verified.
//
// Threads: single-threaded.
// Errors:  std::runtime_error for a malformed question; InternalError for a
//          wrong result; what the engine throws.
#pragma once

#include <string>

#include "apps/bench/bench_engine.h"

namespace lockstep {

// Answers questions until there are no more; rank 0 prints the answers.
void answer_requests(Engine& engine, const std::string& prefix);

}  // namespace lockstep
