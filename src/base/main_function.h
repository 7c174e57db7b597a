// What main() of our programs does around their work.
//
// Threads: the main thread, before it starts others.
#pragma once

#include <span>

namespace lockstep {

// Opens /dev/null for standard input, output and error where the caller closed
// them: otherwise one of our files would take their numbers. A write to such a
// standard output fails with EBADF, since results would be lost.
void open_standard_streams();

// For a program whose output is no result: a standard output that is not open
// for writing takes everything from now on.
void discard_closed_output();

// Opens the standard streams and calls `run` with the arguments behind the
// program's name. Returns its result; after an exception, whose text it prints,
// kExitUsage for InvalidArgument and kExitFailed for others. Where the limit on
// the stack is too small (ulimit -s), it calls nothing and says so.
int run_main(int count, char** arguments,
             int (*run)(std::span<const char* const>));

}  // namespace lockstep
