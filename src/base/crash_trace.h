// Prints the calls that led to a fatal signal, before the process ends by it.
//
// A C++ program that crashes, or ends by an exception that it does not catch,
// otherwise leaves one line at most. The handler uses the unwinder, and the
// symbols of the program's file: names of functions without a rebuild, unless
// the file was stripped. A signal that has a handler already keeps it.
//
// Threads: call it before other threads start.
// Errors:  none; without memory for the handler's stack, none is installed.
#pragma once

#include <string>

namespace lockstep {

// `who` stands in the first line: "rank 1". Call it once.
void trace_crashes(const std::string& who);

}  // namespace lockstep
