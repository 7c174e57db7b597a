#include "apps/scale/scale_plot.h"

#include <fmt/format.h>

#include <utility>

#include "apps/job/gnuplot.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

std::string data_of(const ScaleReport& report) {
  std::string text;
  for (std::size_t i = 0; i < report.series.size(); ++i) {
    const ScaleSeries& series = report.series[i];
    text += fmt::format("$series{} << END\n", i);
    for (const ScaleRow& row : series.rows) {
      const ScaleFigures figures = figures_of(series, row);
      text += fmt::format("{} {} {}\n", row.ranks, figures.images_per_second,
                          100 * figures.efficiency);
    }
    text += "END\n";
  }
  return text;
}

// Column 2 is images per second, column 3 efficiency in percent; `ideal` is the
// ideal curve as a function of x.
std::string plot_of(const ScaleReport& report, int column,
                    const std::string& ideal) {
  std::string text = fmt::format(
      "plot {} title 'ideal' with lines dashtype 2 linecolor rgb '#888888'",
      ideal);
  for (std::size_t i = 0; i < report.series.size(); ++i)
    text += fmt::format(
        ", $series{} using 1:{} title {} with linespoints pointtype 7 "
        "linewidth 2 linecolor rgb '{}'",
        i, column, gnuplot_text(report.series[i].name),
        kPlotColors[i % kPlotColors.size()]);
  return text + "\n";
}

std::string page_of(const ScaleReport& report) {
  const ScaleSeries& ours = report.series.front();
  const double first = figures_of(ours, ours.rows.front()).images_per_second;
  // All layouts use all cores, so each should be as fast as the first.
  const std::string ideal =
      report.layouts ? fmt::format("{}", first)
                     : fmt::format("{} * x", first / ours.rows.front().ranks);
  return "set multiplot layout 1,2 title " +
         gnuplot_text(title_of(report, ours)) +
         "\nset key top left\nset ylabel 'images/s'\n" +
         plot_of(report, 2, ideal) +
         "set key bottom left\nset ylabel 'efficiency, %'\n" +
         plot_of(report, 3, "100") + "unset multiplot\n";
}

}  // namespace

std::string gnuplot_script(const ScaleReport& report,
                           const std::filesystem::path& prefix) {
  std::string ticks;
  for (const ScaleRow& row : report.series.front().rows)
    ticks += fmt::format("{}{}", ticks.empty() ? "" : ", ", row.ranks);
  std::string script =
      data_of(report) +
      fmt::format(
          "set xlabel 'ranks'\nset xtics ({})\nset xrange [0:{}]\n"
          "set yrange [0:*]\nset grid\n",
          ticks, report.series.front().rows.back().ranks + 0.5);
  const std::string page = page_of(report);
  for (const auto& [terminal, ending] :
       {std::pair{"svg size 900,400 dynamic noenhanced", ".svg"},
        std::pair{"pngcairo size 1800,800 fontscale 1.6 noenhanced", ".png"}})
    script +=
        fmt::format("set terminal {}\nset output {}\n{}unset output\n",
                    terminal, gnuplot_text(prefix.string() + ending), page);
  return script;
}

void draw(const ScaleReport& report, const std::filesystem::path& prefix,
          const std::string& gnuplot) {
  const std::string script = gnuplot_script(report, prefix);
  replace_text_file(prefix.string() + ".gnuplot", script);
  run_gnuplot(gnuplot, script);
}

}  // namespace lockstep
