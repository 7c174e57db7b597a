// A log-log plot as an SVG document, readable on light and dark pages.
//
// No library for it: those that draw curves pull in a program or a toolkit, and
// this is two axes, a grid and a few lines.
//
// Errors:  InvalidArgument when there is no point that logarithms reach.
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

// Axes reach from one power of ten to another and carry a tick at each. Points
// that are not above zero are left out.
std::string draw_svg(const Plot& plot);

}  // namespace lockstep
