// The plug-ins that move messages between hosts: finding and loading them.
//
// A plug-in `NAME` is the shared object liblockstep_NAME.so. It is looked for
//
// 1. in Settings::plugin_path;
// 2. beside the library or program that this code is part of, and beside the
//    program; from there in lockstep, ../lib and ../lib/lockstep, as an
//    installation has it, wherever it was moved;
// 3. on the loader's path, which in programs linked by CMake to the package
//    starts with the package's folder;
// 4. in the prefix that was configured, then in the build's own folder.
//
// One that cannot be used, or is of another version, is passed over. Once
// loaded it stays.
//
// Threads: every function may be called from any thread.
// Errors:  InvalidArgument with the next step when a plug-in cannot be loaded,
//          or would end the process: gloo's beside a preloaded malloc;
//          SystemError when the process is out of file descriptors.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/comm/wire/transport.h"

namespace lockstep {

// The table of the plug-in called `name`.
const LockstepTransportTable& load_transport(const std::string& name,
                                             const Settings& settings);

// Whether a plug-in can be used on this machine.
struct PluginStatus {
  std::string name;  // "gloo"
  bool found = false;
  std::string detail{};  // the file that was found; otherwise what to do
};

// The status of every plug-in there is, for `lockstep doctor`.
std::vector<PluginStatus> plugin_status(const Settings& settings);

// The first folder of this program's own that holds a plug-in, whatever the
// settings say: what a launcher tells its workers. Empty when there is none.
std::string plugin_folder();

}  // namespace lockstep
