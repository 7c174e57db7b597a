// The error for a malformed file. Every such message has the same four facts.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

struct MalformedFile {
  std::string file = {};
  std::string problem = {};  // "the magic number is wrong"
  // The byte offset of the problem; for gzip files in the decompressed data,
  // unless `problem` concerns the compressed data.
  std::size_t offset = 0;
  std::string expected = {};
  std::string found = {};
};

// The exception to throw for `fault`.
InvalidArgument malformed_file(const MalformedFile& fault);

}  // namespace lockstep
