// The plug-ins that move messages between hosts: finding and loading them.
//
// A plug-in `NAME` is the shared object liblockstep_NAME.so. It is looked for
// in Settings::plugin_path, beside the code that asks, in ../lib beside that,
// where `cmake --install` puts it when it is given no other prefix, and on the
// loader's path; once loaded it stays.
//
// Threads: every function may be called from any thread.
// Errors:  InvalidArgument with the next step when a plug-in cannot be loaded.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/comm/wire/transport.h"

namespace lockstep {

// The table of the plug-in called `name`.
const LockstepTransportTable& load_transport(const std::string& name,
                                             const Settings& settings);

// The function `symbol` of the plug-in called `name`; null when it has none.
void* plugin_symbol(const std::string& name, const char* symbol,
                    const Settings& settings);

// Whether a plug-in can be used on this machine.
struct PluginStatus {
  std::string name;  // "gloo"
  bool found = false;
  std::string detail{};  // the file that was found; otherwise what to do
};

// The status of every plug-in there is, for `lockstep doctor`.
std::vector<PluginStatus> plugin_status(const Settings& settings);

}  // namespace lockstep
