// A pipe between two processes, or between two parts of one process.
//
// Threads: any thread.
// Errors:  SystemError.
#pragma once

#include <functional>
#include <string_view>

#include "src/net/file_descriptor.h"

namespace lockstep {

// Both ends are blocking and close-on-exec.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe make_pipe();

// Of this end only: the other one still blocks.
void make_nonblocking(const FileDescriptor& end);

// Passes the bytes of one read to `take`, at most 64 KiB. Returns false when
// the pipe, which must not block, is empty or has ended; the latter closes
// `pipe`.
bool read_once(FileDescriptor& pipe,
               const std::function<void(std::string_view)>& take);

}  // namespace lockstep
