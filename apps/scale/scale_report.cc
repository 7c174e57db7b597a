#include "apps/scale/scale_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/report_text.h"
#include "src/base/version.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::string>;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

std::vector<double> speeds_of(const ScaleRow& row) {
  std::vector<double> speeds;
  for (const ScaleRun& run : row.runs) speeds.push_back(run.images_per_second);
  return speeds;
}

template <class Number>
std::string or_dash(const std::optional<Number>& value) {
  return value ? fmt::format("{}", *value) : "-";
}

const Cells kHead{"ranks",   "threads",    "global batch", "batch per rank",
                  "epoch s", "images/s",   "speed-up",     "efficiency",
                  "spread",  "cores busy", "GPUs busy"};

Cells cells_of(const ScaleSeries& series, const ScaleRow& row) {
  const ScaleFigures figures = figures_of(series, row);
  const bool repeated = row.runs.size() > 1;
  return {fmt::format("{}", row.ranks),
          or_dash(row.threads),
          or_dash(row.global_batch),
          or_dash(row.batch_per_rank),
          figures.epoch_seconds ? fmt::format("{:.2f}", *figures.epoch_seconds)
                                : "-",
          with_thousands(std::llrint(figures.images_per_second)),
          fmt::format("{:.2f}", figures.speed_up),
          percent(figures.efficiency, 0),
          repeated ? percent(figures.spread, 0) : "-",
          fmt::format("{:.2f}", figures.cores_busy),
          figures.gpus_busy ? fmt::format("{:.2f}", *figures.gpus_busy) : "-"};
}

std::vector<Cells> table_of(const ScaleSeries& series) {
  std::vector<Cells> table{kHead};
  bool has_gpus = false;
  for (const ScaleRow& row : series.rows) {
    table.push_back(cells_of(series, row));
    has_gpus |= figures_of(series, row).gpus_busy.has_value();
  }
  if (!has_gpus)
    for (Cells& line : table) line.pop_back();
  return table;
}

// Compares our series at each world size, one line per compared job.
std::string comparison_of(const ScaleReport& report) {
  const ScaleSeries& ours = report.series.front();
  std::string text;
  for (std::size_t i = 1; i < report.series.size(); ++i) {
    const ScaleSeries& theirs = report.series[i];
    text +=
        fmt::format("{}'s images/s over those of {}:", ours.name, theirs.name);
    for (std::size_t row = 0; row < theirs.rows.size(); ++row)
      text += fmt::format(
          "{} {:.2f} on {} rank{}", row == 0 ? "" : ",",
          figures_of(ours, ours.rows[row]).images_per_second /
              figures_of(theirs, theirs.rows[row]).images_per_second,
          theirs.rows[row].ranks, theirs.rows[row].ranks == 1 ? "" : "s");
    text += "\n";
  }
  return text;
}

Json json_of(const ScaleRun& run) {
  Json document{{"images_per_second", run.images_per_second},
                {"cores_busy", run.cores_busy}};
  if (run.gpus_busy) document["gpus_busy"] = *run.gpus_busy;
  if (run.epoch_seconds) document["epoch_seconds"] = *run.epoch_seconds;
  return document;
}

Json json_of(const ScaleSeries& series, const ScaleRow& row) {
  const ScaleFigures figures = figures_of(series, row);
  Json document{{"ranks", row.ranks}};
  if (row.threads) document["threads"] = *row.threads;
  if (row.global_batch) document["global_batch"] = *row.global_batch;
  if (row.batch_per_rank) document["batch_per_rank"] = *row.batch_per_rank;
  if (figures.epoch_seconds) document["epoch_seconds"] = *figures.epoch_seconds;
  document["images_per_second"] = figures.images_per_second;
  document["speed_up"] = figures.speed_up;
  document["efficiency"] = figures.efficiency;
  document["spread"] = figures.spread;
  document["cores_busy"] = figures.cores_busy;
  if (figures.gpus_busy) document["gpus_busy"] = *figures.gpus_busy;
  document["runs"] = Json::array();
  for (const ScaleRun& run : row.runs) document["runs"].push_back(json_of(run));
  return document;
}

// Escapes a text for Markdown, as one line.
std::string code_span(std::string text) {
  std::ranges::replace_if(
      text,
      [](char letter) { return static_cast<unsigned char>(letter) < ' '; },
      ' ');
  std::string fence = "`";
  while (text.find(fence) != std::string::npos) fence += '`';
  return fence + " " + text + " " + fence;
}

// "1 core", "2 cores".
std::string counted(int number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

std::string describe(const ScaleRow& row) {
  return counted(row.ranks, "rank") +
         (row.threads ? " x " + counted(*row.threads, "thread") : "");
}

int threads_of_all(const ScaleRow& row) {
  return row.ranks * row.threads.value_or(1);
}

// A row whose runs differ by more than this says little about the job.
std::string doubts_about(const ScaleReport& report) {
  constexpr double kWorthless = 0.2;
  std::string text;
  for (const ScaleSeries& series : report.series)
    for (const ScaleRow& row : series.rows)
      if (const double spread = figures_of(series, row).spread;
          spread > kWorthless)
        text += fmt::format(
            "unsteady: runs of {} on {} differ by {}; do not use these "
            "numbers, and repeat on an idle machine, with more --epochs\n",
            series.name, counted(row.ranks, "rank"), percent(spread, 0));
  return text;
}

// A layout that is not clearly slower than the fastest counts as equally fast.
std::string fastest_layout_of(const ScaleReport& report) {
  constexpr double kClearly = 0.95;
  if (!report.layouts) return "";
  const ScaleSeries& ours = report.series.front();
  const auto speed = [&](const ScaleRow& row) {
    return figures_of(ours, row).images_per_second;
  };
  const ScaleRow& best = *std::ranges::max_element(ours.rows, {}, speed);
  std::string text = fmt::format("fastest: {}", describe(best));
  for (const ScaleRow& row : ours.rows)
    if (&row != &best && speed(row) > kClearly * speed(best))
      text += fmt::format("; {} is as fast", describe(row));
  return text + "\n";
}

std::string remarks_of(const ScaleReport& report) {
  return comparison_of(report) + fastest_layout_of(report) +
         doubts_about(report);
}

}  // namespace

std::string title_of(const ScaleReport& report, const ScaleSeries& series) {
  const bool is_ours = &series == &report.series.front();
  return series.name +
         (is_ours && !report.job.empty() ? ": " + report.job : "") + ", on " +
         counted(report.cores, "core") +
         (report.machine.empty() ? "" : " of " + report.machine);
}

ScaleFigures figures_of(const ScaleSeries& series, const ScaleRow& row) {
  const std::vector<double> speeds = speeds_of(row);
  ScaleFigures figures;
  figures.images_per_second = median(speeds);
  std::vector<double> seconds;
  std::vector<double> cores, gpus;
  for (const ScaleRun& run : row.runs) {
    if (run.gpus_busy) gpus.push_back(*run.gpus_busy);
    if (run.epoch_seconds) seconds.push_back(*run.epoch_seconds);
    cores.push_back(run.cores_busy);
  }
  if (!seconds.empty()) figures.epoch_seconds = median(seconds);
  figures.cores_busy = median(cores);
  if (!gpus.empty()) figures.gpus_busy = median(gpus);
  const ScaleRow& first = series.rows.front();
  figures.speed_up = figures.images_per_second / median(speeds_of(first));
  figures.efficiency =
      figures.speed_up * threads_of_all(first) / threads_of_all(row);
  const auto [least, most] = std::ranges::minmax(speeds);
  figures.spread = (most - least) / figures.images_per_second;
  return figures;
}

std::string to_text(const ScaleReport& report) {
  std::string text;
  for (const ScaleSeries& series : report.series)
    text += fmt::format("{}\n\n{}\n", title_of(report, series),
                        aligned_table(table_of(series)));
  return text + remarks_of(report);
}

std::string to_markdown(const ScaleReport& given) {
  ScaleReport report = given;
  for (std::size_t i = 1; i < report.series.size(); ++i)
    report.series[i].name = code_span(report.series[i].name);
  std::string text;
  for (const ScaleSeries& series : report.series) {
    std::vector<Cells> table = table_of(series);
    table.insert(table.begin() + 1, Cells(table.front().size(), "---:"));
    text += fmt::format("{}\n\n{}\n", title_of(report, series),
                        aligned_table(table, {"| ", " | ", " |"}));
  }
  return text + remarks_of(report);
}

std::string to_json(const ScaleReport& report) {
  Json document{{"lockstep", version()},
                {"cores", report.cores},
                {"machine", report.machine},
                {"job", report.job},
                {"series", Json::array()}};
  for (const ScaleSeries& series : report.series) {
    Json rows = Json::array();
    for (const ScaleRow& row : series.rows)
      rows.push_back(json_of(series, row));
    document["series"].push_back({{"name", series.name}, {"rows", rows}});
  }
  constexpr int kIndent = 1;
  // A command's bytes may be of any encoding.
  return document.dump(kIndent, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

}  // namespace lockstep
