// Prints the calls that led to a fatal signal, before the process ends by it.
//
// A C++ program that crashes, or ends by an exception that it does not catch,
// otherwise leaves one line at most. The handler uses the unwinder, and the
// symbols of the program's file and its libraries: names of functions without a
// rebuild, unless a file was stripped. A signal that has a handler already
// keeps it. An uncaught PeerFailure is not traced.
//
// Threads: call it in the main thread, before others start; only that thread
//          gets a stack for the handler.
// Errors:  none.
#pragma once

#include <string>

namespace lockstep {

// `who` stands in the first line: "rank 1". Call it once.
void trace_crashes(const std::string& who);

}  // namespace lockstep
