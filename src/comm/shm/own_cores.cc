#include "src/comm/shm/own_cores.h"

#include <array>
#include <bitset>

namespace lockstep {
namespace {

// The core of each rank; a rank moves to another core if that makes room.
// Source: augmenting paths in bipartite graphs (Kuhn).
class CoreAssignment {
 public:
  explicit CoreAssignment(const std::vector<cpu_set_t>& allowed)
      : allowed_(allowed) {
    rank_on_.fill(-1);
  }

  bool find_core(int rank) {
    tried_.reset();
    return try_cores(rank);
  }

 private:
  bool try_cores(int rank) {
    const cpu_set_t& cores = allowed_[static_cast<std::size_t>(rank)];
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &cores) || tried_[core]) continue;
      tried_.set(core);
      if (rank_on_[core] >= 0 && !try_cores(rank_on_[core])) continue;
      rank_on_[core] = rank;
      return true;
    }
    return false;
  }

  const std::vector<cpu_set_t>& allowed_;
  std::array<int, CPU_SETSIZE> rank_on_{};
  std::bitset<CPU_SETSIZE> tried_;
};

}  // namespace

cpu_set_t cores_of_this_thread() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // Fails if the kernel has more cores than fit.
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0)
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
      CPU_SET(core, &cores);
  return cores;
}

bool each_has_a_core(const std::vector<cpu_set_t>& allowed) {
  CoreAssignment seating(allowed);
  for (int rank = 0; rank < static_cast<int>(allowed.size()); ++rank)
    if (!seating.find_core(rank)) return false;
  return true;
}

}  // namespace lockstep
