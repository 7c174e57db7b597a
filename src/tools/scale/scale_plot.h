// Plots the results of `lockstep scale` with gnuplot.
//
// Threads: the main thread; starts a process.
// Errors:  InvalidArgument with the next step when gnuplot is missing;
//          SystemError when it cannot be started; Error with its exit status
//          when it fails, after its own messages on standard error.
#pragma once

#include <filesystem>
#include <string>

#include "src/base/settings.h"
#include "src/tools/scale/scale_report.h"

namespace lockstep {

// Finds gnuplot in the PATH of `lookup`.
std::string require_gnuplot(const EnvironmentLookup& lookup);

// Plots images per second and efficiency against ranks, with the ideal lines,
// to PREFIX.svg and PREFIX.png. PREFIX.gnuplot is the script.
void draw(const ScaleReport& report, const std::filesystem::path& prefix,
          const std::string& gnuplot);

// The gnuplot script.
std::string gnuplot_script(const ScaleReport& report,
                           const std::filesystem::path& prefix);

}  // namespace lockstep
