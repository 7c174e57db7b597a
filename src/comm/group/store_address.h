// Checks that all ranks can reach the store that rank 0 serves.
//
// Threads: any thread. The system's resolver may block without a deadline.
// Errors:  InvalidArgument with the next step.
#pragma once

#include "src/base/settings.h"
#include "src/comm/group/membership.h"

namespace lockstep {

// Throws on a rank where the store's address is a loopback address although the
// launcher says that the ranks are on several hosts: otherwise the wait would
// end at the deadline. A name that is loopback only on rank 0's host, as a
// host's own name is in Debian's /etc/hosts, is accepted.
void check_store_address(const Membership& membership,
                         const Settings& settings);

}  // namespace lockstep
