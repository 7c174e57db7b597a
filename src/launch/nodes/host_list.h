// The hosts of a job, as users name them: -H a:2,b:4, or a file with a line per
// host.
//
// Threads: any thread.
// Errors:  InvalidArgument with the entry that is wrong, and its place.
// Source:  the forms of Horovod and OpenMPI.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct HostSlots {
  std::string host;  // a name or a number, without brackets; also user@name
  int slots = 0;     // its ranks; 0: not said

  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

// "a:2,user@b,[fd77::1]:4". A number with several colons needs brackets where
// slots follow.
std::vector<HostSlots> parse_host_list(std::string_view text);

// A host per line, with its slots as in "a slots=2" or "a:2"; "#" begins a
// comment. Also SystemError when reading the file fails.
std::vector<HostSlots> read_host_file(const std::string& path);

}  // namespace lockstep
