// Which ranks of a group are on one host, that is, can share memory.
//
// Threads: called by each rank, from any thread.
// Errors:  those of `gather`.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep {

struct HostMap {
  // The ranks of each host, ascending; hosts in the order of their first rank.
  std::vector<std::vector<int>> ranks_of;
  // Rank r is ranks_of[host_of[r]][index_of[r]].
  std::vector<int> host_of;
  std::vector<int> index_of;

  int hosts() const { return static_cast<int>(ranks_of.size()); }
  // The smallest and the largest number of ranks on a host.
  int fewest() const;
  int most() const;
};

// The map of ranks where rank r is on the host called ids[r].
HostMap map_hosts(const std::vector<std::string>& ids);

// Gives each rank's `mine` to every rank; `subject` distinguishes two calls.
using GatherTexts = std::function<std::vector<std::string>(
    const std::string& subject, const std::string& mine)>;

// The ranks tell each other their host. Settings::host_id identifies it, or
// else the running kernel and its namespaces: ranks with the same ones are on
// one host if they find each other's UnixMark.
HostMap find_hosts(int rank, const std::string& host_id,
                   const GatherTexts& gather);

}  // namespace lockstep
