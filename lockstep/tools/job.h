// Runs the job of a command: serves the store that its ranks meet at, launches
// it, and owns standard output and error until it is over.
//
// Threads: call it from the main thread, before any other exists.
// Errors:  as Launcher::run(); NetworkError when no port can be had.
#pragma once

#include "lockstep/base/settings.h"
#include "lockstep/launch/launcher.h"

namespace lockstep {

// Fills in the store, the token and, where it is 0, the master port, then runs
// it. Returns the exit code for this process. What went wrong in the job itself
// has been printed then.
int run_job(LaunchOptions options, const EnvironmentLookup& lookup);

}  // namespace lockstep
