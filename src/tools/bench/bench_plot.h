// A log-log plot as an SVG document, readable on light and dark pages.
//
// It uses no library: plotting libraries depend on a program or a toolkit, and
// this plot is two axes, a grid and a few lines.
//
// Errors:  InvalidArgument when no point is above zero.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct PlotPoint {
  double x = 0;
  double y = 0;
};

struct PlotLine {
  std::string name;
  std::vector<PlotPoint> points;  // by ascending x
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotLine> lines;
};

// Axes run from one power of ten to another, with a tick at each. Points that
// are not above zero are omitted.
std::string draw_svg(const Plot& plot);

}  // namespace lockstep
