// Who this process is among the ranks, worked out from what the user passed and
// what the environment says.
//
// Threads: pure functions.
// Errors:  InvalidArgument naming what is missing or contradictory.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/settings.h"
#include "lockstep/comm/init.h"

namespace lockstep {

struct Membership {
  int rank = 0;
  int world_size = 1;
  // As open_store takes it; "memory:" for a world of one.
  std::string store_url = "memory:";
  // Whether this rank serves the store.
  bool serves_store = false;
};

Membership resolve_membership(const InitOptions& options,
                              const Settings& settings);

}  // namespace lockstep
