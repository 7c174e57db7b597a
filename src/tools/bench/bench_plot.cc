#include "src/tools/bench/bench_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 480;
// The area of the curves.
constexpr double kLeft = 70;
constexpr double kRight = kWidth - 20;
constexpr double kTop = 70;
constexpr double kBottom = kHeight - 55;

// Okabe and Ito's palette for colour-blind readers, without the shades that
// vanish on white or black.
constexpr std::array<std::string_view, 6> kColors{
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

constexpr std::string_view kStyle = R"(<style>
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-size: 15px; font-weight: 600; }
.page { fill: #ffffff; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.page { fill: #0d1117; }
.grid { stroke: #30363d; }
}
</style>
)";

// The powers of ten that bound an axis.
struct Decades {
  int first = 0;
  int last = 1;
};

class Axis {
 public:
  Axis(Decades decades, double from, double to)
      : decades_(decades), from_(from), to_(to) {}

  double place(double value) const {
    const double share =
        (std::log10(value) - decades_.first) / (decades_.last - decades_.first);
    return from_ + share * (to_ - from_);
  }
  int first() const { return decades_.first; }
  int last() const { return decades_.last; }

 private:
  Decades decades_;
  double from_;
  double to_;
};

bool can_be_drawn(const PlotPoint& point) {
  return point.x > 0 && point.y > 0 && std::isfinite(point.x) &&
         std::isfinite(point.y);
}

Decades decades_of(const Plot& plot, double PlotPoint::*coordinate) {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& point : line.points) {
      if (!can_be_drawn(point)) continue;
      least = std::min(least, point.*coordinate);
      most = std::max(most, point.*coordinate);
    }
  }
  if (most == 0)
    throw InvalidArgument("there is nothing to plot: no point is above zero");
  const int first = static_cast<int>(std::floor(std::log10(least)));
  const int last = static_cast<int>(std::ceil(std::log10(most)));
  return {first, std::max(last, first + 1)};
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '&')
      escaped += "&amp;";
    else if (letter == '<')
      escaped += "&lt;";
    else
      escaped += letter;
  }
  return escaped;
}

// "0.01", "1", "100", "10 k", "1 M".
std::string tick_text(int power) {
  constexpr std::array<std::string_view, 5> kUnits{"", " k", " M", " G", " T"};
  const int unit = std::clamp(power / 3, 0, 4);
  return fmt::format("{:g}{}", std::pow(10.0, power - 3 * unit),
                     kUnits.at(static_cast<std::size_t>(unit)));
}

void draw_text(std::string& svg, double x, double y, std::string_view anchor,
               std::string_view text) {
  fmt::format_to(std::back_inserter(svg),
                 "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}"
                 "</text>\n",
                 x, y, anchor, escape(text));
}

void draw_grid(std::string& svg, const Axis& x, const Axis& y) {
  const auto line = [&](double x1, double y1, double x2, double y2) {
    fmt::format_to(std::back_inserter(svg),
                   "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" "
                   "x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                   x1, y1, x2, y2);
  };
  for (int power = x.first(); power <= x.last(); ++power) {
    const double place = x.place(std::pow(10.0, power));
    line(place, kTop, place, kBottom);
    draw_text(svg, place, kBottom + 18, "middle", tick_text(power));
  }
  for (int power = y.first(); power <= y.last(); ++power) {
    const double place = y.place(std::pow(10.0, power));
    line(kLeft, place, kRight, place);
    draw_text(svg, kLeft - 8, place + 4, "end", tick_text(power));
  }
}

void draw_labels(std::string& svg, const Plot& plot) {
  fmt::format_to(std::back_inserter(svg),
                 "<text class=\"title\" x=\"{}\" y=\"24\">{}</text>\n", kLeft,
                 escape(plot.title));
  draw_text(svg, (kLeft + kRight) / 2, kHeight - 14, "middle", plot.x_label);
  fmt::format_to(std::back_inserter(svg),
                 "<text transform=\"translate(18 {:.1f}) rotate(-90)\" "
                 "text-anchor=\"middle\">{}</text>\n",
                 (kTop + kBottom) / 2, escape(plot.y_label));
}

void draw_curve(std::string& svg, const PlotLine& line, std::string_view color,
                const std::pair<Axis, Axis>& axes) {
  std::string path;
  std::string dots;
  for (const PlotPoint& point : line.points) {
    if (!can_be_drawn(point)) continue;
    const double x = axes.first.place(point.x);
    const double y = axes.second.place(point.y);
    fmt::format_to(std::back_inserter(path), "{:.1f},{:.1f} ", x, y);
    fmt::format_to(std::back_inserter(dots),
                   "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\">"
                   "<title>{}: {:g}, {:g}</title></circle>\n",
                   x, y, color, escape(line.name), point.x, point.y);
  }
  fmt::format_to(std::back_inserter(svg),
                 "<polyline class=\"curve\" stroke=\"{}\" points=\"{}\"/>\n{}",
                 color, path, dots);
}

// Draws an entry in a row under the title; returns the start of the next entry.
double draw_legend_entry(std::string& svg, double x, std::string_view name,
                         std::string_view color) {
  constexpr double kY = 48;
  fmt::format_to(std::back_inserter(svg),
                 "<line class=\"curve\" stroke=\"{}\" x1=\"{:.1f}\" "
                 "y1=\"{}\" x2=\"{:.1f}\" y2=\"{}\"/>\n",
                 color, x, kY - 4, x + 22, kY - 4);
  draw_text(svg, x + 28, kY, "start", name);
  constexpr double kLetter = 8;
  return x + 48 + kLetter * static_cast<double>(name.size());
}

}  // namespace

std::string draw_svg(const Plot& plot) {
  const std::pair<Axis, Axis> axes{
      Axis(decades_of(plot, &PlotPoint::x), kLeft, kRight),
      Axis(decades_of(plot, &PlotPoint::y), kBottom, kTop)};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
      "width=\"{}\" height=\"{}\">\n{}"
      "<rect class=\"page\" width=\"{}\" height=\"{}\"/>\n",
      kWidth, kHeight, kWidth, kHeight, kStyle, kWidth, kHeight);
  draw_labels(svg, plot);
  draw_grid(svg, axes.first, axes.second);
  double legend = kLeft;
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const std::string_view color = kColors.at(i % kColors.size());
    draw_curve(svg, plot.lines[i], color, axes);
    legend = draw_legend_entry(svg, legend, plot.lines[i].name, color);
  }
  return svg + "</svg>\n";
}

}  // namespace lockstep
