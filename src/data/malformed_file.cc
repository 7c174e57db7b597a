#include "src/data/malformed_file.h"

#include <fmt/format.h>

namespace lockstep {

InvalidArgument malformed_file(const MalformedFile& fault) {
  return InvalidArgument(fmt::format(
      "cannot read {}: {}\n"
      "  offset:   {}\n"
      "  expected: {}\n"
      "  found:    {}\n"
      "  next:     fetch the file again, or check that it is what its name "
      "says",
      fault.file, fault.problem, fault.offset, fault.expected, fault.found));
}

}  // namespace lockstep
