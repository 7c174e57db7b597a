// The error for a file that does not hold what it should: every such message
// has the same four facts.
//
// Threads: values and pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

struct MalformedFile {
  std::string file = {};
  std::string problem = {};  // "the magic number is wrong"
  // Where reading went wrong, in bytes; for gzip files in the decompressed
  // data, unless `problem` speaks of the compressed data.
  std::size_t offset = 0;
  std::string expected = {};
  std::string found = {};
};

// The exception to throw for `fault`.
InvalidArgument malformed_file(const MalformedFile& fault);

}  // namespace lockstep
