#include <unistd.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/run_files.h"
#include "src/store/host_address.h"

namespace lockstep {

std::filesystem::path rank_path(std::string_view pattern,
                                const ProcessGroup& group) {
  std::string path;
  bool has_rank = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      path += pattern[i];
      continue;
    }
    const char letter = ++i < pattern.size() ? pattern[i] : ' ';
    if (letter == 'r')
      path += std::to_string(group.rank());
    else if (letter == 'h')
      path += own_host_name();
    else if (letter == 'p')
      path += std::to_string(::getpid());
    else if (letter == '%')
      path += '%';
    else
      throw InvalidArgument("the pattern \"" + std::string(pattern) +
                            "\" has a percent sign without one of r (rank), h "
                            "(host), p (process) "
                            "and % after it");
    has_rank |= letter == 'r';
  }
  if (!has_rank && group.size() > 1)
    throw InvalidArgument(
        "the pattern \"" + std::string(pattern) + "\" gives all " +
        std::to_string(group.size()) +
        " ranks one file\n"
        "  next:    add %r, which stands for the rank; or open the file as an "
        "AppendedFile, to which all ranks may append");
  return path;
}

}  // namespace lockstep
