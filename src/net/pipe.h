// A pipe between two processes, or between two parts of one process.
//
// Threads: any thread.
// Errors:  SystemError.
#pragma once

#include "src/net/file_descriptor.h"

namespace lockstep {

// Both ends are blocking and close-on-exec.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe make_pipe();

}  // namespace lockstep
