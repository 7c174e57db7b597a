// The rank of this process and the world size, from the user's options and the
// environment: torchrun's variables first, then mpirun's, then srun's (see
// RankEnvironment).
//
// Errors:  InvalidArgument naming what is missing or contradictory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/groups.h"
#include "src/base/settings.h"

namespace lockstep {

struct Membership {
  int rank = 0;
  int world_size = 1;
  // The argument of open_store; "memory:" for a world of size 1, "" if it needs
  // bootstrap.
  std::string store_url = "memory:";
  // RankEnvironment::more_ports, for a store at its master_port.
  std::vector<int> more_ports = {};
  // Whether one of the ranks serves the store, instead of a launcher or a file
  // system, and whether this is that rank.
  bool rank_zero_serves = false;
  bool serves_store = false;
  // mpirun started the ranks and the environment does not say where rank 0 is:
  // mpirun has to carry the store's address.
  bool needs_bootstrap = false;
};

Membership resolve_membership(const InitOptions& options,
                              const Settings& settings);

}  // namespace lockstep
