// Whether all ranks can reach the store that rank 0 serves.
//
// Threads: any. Asks the system's resolver, which knows no deadline.
// Errors:  InvalidArgument with the next step.
#pragma once

#include "lockstep/base/settings.h"
#include "lockstep/comm/membership.h"

namespace lockstep {

// Throws on a rank for which the store's address is one of its own host's
// (loopback) while the launcher says that the ranks are on several hosts: the
// wait would end at the deadline. A name that means loopback on rank 0's host
// only, as Debian's /etc/hosts makes of a host's own, is right.
void check_store_address(const Membership& membership,
                         const Settings& settings);

}  // namespace lockstep
