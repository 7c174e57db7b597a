// Plots the results of `lockstep scale` with gnuplot.
//
// Threads: any; starts a process.
// Errors:  those of apps/job/gnuplot.h.
#pragma once

#include <filesystem>
#include <string>

#include "apps/scale/scale_report.h"

namespace lockstep {

// Plots images per second and efficiency against ranks, with the ideal lines,
// to PREFIX.svg and PREFIX.png. PREFIX.gnuplot is the script.
void draw(const ScaleReport& report, const std::filesystem::path& prefix,
          const std::string& gnuplot);

// The gnuplot script.
std::string gnuplot_script(const ScaleReport& report,
                           const std::filesystem::path& prefix);

}  // namespace lockstep
