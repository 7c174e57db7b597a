// Draws figures with gnuplot, which the user installs.
//
// Threads: any; run_gnuplot() starts a process and waits for its end.
// Errors:  InvalidArgument with the next step when gnuplot is missing;
//          SystemError when it cannot be started; Error with its exit status
//          when it fails, after its own messages on standard error.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "src/base/settings.h"

namespace lockstep {

// Okabe and Ito's palette for colour-blind readers, without the shades that
// vanish on white.
inline constexpr std::array<std::string_view, 6> kPlotColors{
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

// Finds gnuplot in the PATH of `lookup`; `flag` is what needs it, for messages.
std::string require_gnuplot(const EnvironmentLookup& lookup,
                            std::string_view flag);

// Quotes a text for a gnuplot script, as one line.
std::string gnuplot_text(std::string_view text);

// Runs `script` with the program `gnuplot`.
void run_gnuplot(const std::string& gnuplot, std::string_view script);

}  // namespace lockstep
