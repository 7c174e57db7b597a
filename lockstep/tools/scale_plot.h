// Draws what `lockstep scale` found, with gnuplot.
//
// Threads: main; starts a process.
// Errors:  InvalidArgument with the next step when there is no gnuplot;
//          SystemError when it cannot be started; Error with its exit status
//          when it fails, after what it said on standard error.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/base/settings.h"
#include "lockstep/tools/scale_report.h"

namespace lockstep {

// Where gnuplot is, as PATH in `lookup` says.
std::string require_gnuplot(const EnvironmentLookup& lookup);

// Images a second and efficiency against ranks, beside ideal ones, as
// PREFIX.svg and PREFIX.png; PREFIX.gnuplot is what they are drawn from.
void draw(const ScaleReport& report, const std::filesystem::path& prefix,
          const std::string& gnuplot);

// What gnuplot is told for it.
std::string gnuplot_script(const ScaleReport& report,
                           const std::filesystem::path& prefix);

}  // namespace lockstep
