// A mark by which processes find out that they share a network namespace, and
// so a kernel.
//
// A random name of an abstract Unix socket: no other machine has it, even one
// that is a copy of this one. It vanishes with the object.
//
// Threads: any thread.
// Errors:  SystemError when the kernel refuses the socket.
#pragma once

#include <string>

#include "src/net/file_descriptor.h"

namespace lockstep {

class UnixMark {
 public:
  UnixMark();

  // Printable, without blanks.
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
  FileDescriptor socket_;
};

// Whether a UnixMark with this name exists in this network namespace.
bool is_marked_here(const std::string& name);

}  // namespace lockstep
