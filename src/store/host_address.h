// The address at which other hosts reach this one.
//
// Errors:  InvalidArgument when LOCKSTEP_INTERFACE does not name an interface
//          of this host.
#pragma once

#include <string>

#include "src/base/settings.h"

namespace lockstep {

// The numeric address of the interface that Settings::interface names; if that
// is empty, of the interface that routes to the store's host, or if that is
// unknown, of the first interface that is up. Logs it at debug level.
std::string choose_host_address(const Settings& settings);

// The name of this host, for messages.
std::string own_host_name();

}  // namespace lockstep
