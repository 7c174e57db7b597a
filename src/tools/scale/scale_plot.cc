#include "src/tools/scale/scale_plot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/exit_status.h"
#include "src/base/text_file.h"
#include "src/launch/worker/find_program.h"
#include "src/launch/worker/worker_environment.h"

namespace lockstep {
namespace {

// Quotes a text for gnuplot, as one line.
std::string gnuplot_text(std::string_view text) {
  std::string out = "'";
  for (const char letter : text) {
    const bool is_control = static_cast<unsigned char>(letter) < ' ';
    out += is_control ? ' ' : letter;
    if (letter == '\'') out += letter;
  }
  return out + "'";
}

// Okabe and Ito's palette for colour-blind readers.
constexpr std::array<std::string_view, 4> kColors{"#0072b2", "#d55e00",
                                                  "#009e73", "#cc79a7"};

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
        kColors[i % kColors.size()]);
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

std::string require_gnuplot(const EnvironmentLookup& lookup) {
  try {
    return find_program("gnuplot", lookup("PATH").value_or(""));
  } catch (const CannotExecute&) {
    throw InvalidArgument(
        "--report needs gnuplot for its drawings: install it (apt-get install "
        "gnuplot-nox), or print the report with --json");
  }
}

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
  const std::string script = prefix.string() + ".gnuplot";
  replace_text_file(script, gnuplot_script(report, prefix));
  std::vector<std::string> words{gnuplot, script};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, gnuplot.c_str(), nullptr, nullptr,
                                   arguments.data(), environ);
  if (failed != 0) throw SystemError("cannot start " + gnuplot, failed);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  const ExitStatus end = ExitStatus::of_wait(status);
  if (end.ended_well()) return;
  throw Error(
      fmt::format("{} {}; the tables are written, {}.svg and .png are not\n"
                  "  next:    read its messages above",
                  gnuplot, describe(end), prefix.string()));
}

}  // namespace lockstep
