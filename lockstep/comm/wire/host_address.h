// The address at which other hosts reach this one.
//
// Threads: pure functions but for asking the kernel.
// Errors:  InvalidArgument when LOCKSTEP_INTERFACE names nothing of this host.
#pragma once

#include <string>

#include "lockstep/base/settings.h"

namespace lockstep {

// The address (a number) of the interface that Settings::interface names;
// without one, of the interface that routes to the store's host, and where that
// is not known either, of the first that is up. Said at debug level.
std::string choose_host_address(const Settings& settings);

// The name of this host, for messages.
std::string own_host_name();

}  // namespace lockstep
