// A pipe between two processes, or two parts of one.
//
// Threads: any.
// Errors:  SystemError.
#pragma once

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// Both ends block, and are closed when the process executes a program.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe make_pipe();

}  // namespace lockstep
