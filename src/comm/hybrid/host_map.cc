#include "src/comm/hybrid/host_map.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "src/comm/rendezvous/store_all_gather.h"

namespace lockstep {
namespace {

// Sharing memory needs the same kernel, the same network namespace for the
// socket through which ranks connect, and the same process namespace in which
// they watch each other.
std::string host_of_this_process() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    std::error_code ignored;
    id += ' ';
    id += std::filesystem::read_symlink(space, ignored).string();
  }
  return id;
}

}  // namespace

int HostMap::fewest() const {
  return static_cast<int>(
      std::ranges::min_element(ranks_of, {}, [](const auto& ranks) {
        return ranks.size();
      })->size());
}

int HostMap::most() const {
  return static_cast<int>(
      std::ranges::max_element(ranks_of, {}, [](const auto& ranks) {
        return ranks.size();
      })->size());
}

HostMap map_hosts(const std::vector<std::string>& ids) {
  HostMap map;
  std::map<std::string, int> numbers;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto [entry, is_new] = numbers.try_emplace(ids[rank], map.hosts());
    if (is_new) map.ranks_of.emplace_back();
    auto& ranks = map.ranks_of[static_cast<std::size_t>(entry->second)];
    map.host_of.push_back(entry->second);
    map.index_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  return map;
}

HostMap find_hosts(const GroupIdentity& identity, Store& store,
                   const Settings& settings) {
  if (identity.size == 1) return map_hosts({""});
  const std::string mine =
      settings.host_id.empty() ? host_of_this_process() : settings.host_id;
  return map_hosts(store_all_gather(identity, "host", mine, store,
                                    {settings.rendezvous_timeout}));
}

}  // namespace lockstep
