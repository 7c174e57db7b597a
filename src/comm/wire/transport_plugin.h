// Finds and loads the plug-ins that move messages between hosts.
//
// A plug-in `NAME` is the shared object liblockstep_NAME.so. Lockstep searches
// for it
//
// 1. in Settings::plugin_path;
// 2. beside the library or program that contains this code, and beside the
//    program; relative to those in lockstep, ../lib and ../lib/lockstep, so
//    that an installation can be moved;
// 3. on the loader's path, which in programs linked by CMake to the package
//    starts with the package's folder;
// 4. in the configured prefix, then in the build folder.
//
// The search skips a file that cannot be used or has another version. A loaded
// plug-in is never unloaded.
//
// Threads: every function may be called from any thread.
// Errors:  InvalidArgument with the next step when a plug-in cannot be loaded,
//          or would end the process (gloo's with a preloaded malloc);
//          SystemError when the process is out of file descriptors.
#pragma once

#include <string>
#include <vector>

#include "src/base/settings.h"
#include "src/comm/wire/transport.h"

namespace lockstep {

// The table of the plug-in called `name`.
const LockstepTransportTable& load_transport(const std::string& name,
                                             const Settings& settings);

// Whether this machine can use a plug-in.
struct PluginStatus {
  std::string name;  // "gloo"
  bool found = false;
  std::string detail{};  // the file that was found, or the next step
};

// The status of every plug-in, for `lockstep doctor`.
std::vector<PluginStatus> plugin_status(const Settings& settings);

// The first of this program's own folders that holds a plug-in, regardless of
// the settings; a launcher passes it to its workers. Empty if no folder does.
std::string plugin_folder();

}  // namespace lockstep
