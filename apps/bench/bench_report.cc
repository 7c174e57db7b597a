#include "apps/bench/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/bench/bench_options.h"
#include "apps/job/gnuplot.h"
#include "src/base/report_text.h"
#include "src/base/version.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr std::size_t kNameWidth = 10;

double microseconds(std::chrono::duration<double> time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

bool is_on_cpu(const BenchReport& report) { return report.device == "cpu"; }

// "all_reduce, sum of float32, in place", "barrier".
std::string title_of(const BenchReport& report) {
  const CollectiveCase& what = report.what;
  std::string text(name_of(what.collective));
  if (what.collective == BenchCollective::kBarrier) return text;
  if (reduces(what.collective)) text += fmt::format(", {}", name_of(what.op));
  text += fmt::format(" of {}", name_of(what.type));
  if (is_in_place(what.collective)) text += ", in place";
  return text;
}

std::string_view name_of(Engine::Memory memory) {
  return memory == Engine::Memory::kPlain ? "plain" : "shared";
}

// Three significant digits, and whole numbers from 100 on.
std::string figure(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  return fmt::format("{:#.3g}", value);
}

Json json_of(const BenchRow& row) {
  return {{"bytes", row.bytes},
          {"count", row.count},
          {"rounds", row.timings.rounds},
          {"calls_per_round", row.timings.calls},
          {"p50_us", microseconds(row.timings.p50)},
          {"p99_us", microseconds(row.timings.p99)},
          {"mean_us", microseconds(row.timings.mean)},
          {"algorithm_gb_per_s", row.bandwidth.algorithm / kGiga},
          {"bus_gb_per_s", row.bandwidth.bus / kGiga},
          {"verified", true}};
}

Json json_of(const BackendRows& backend) {
  Json rows = Json::array();
  for (const BenchRow& row : backend.rows) rows.push_back(json_of(row));
  Json document{{"backend", backend.name}, {"rows", rows}};
  if (!backend.left_out.empty()) document["left_out"] = backend.left_out;
  return document;
}

const BenchRow* row_of(const BackendRows& backend, std::size_t bytes) {
  for (const BenchRow& row : backend.rows)
    if (row.bytes == bytes) return &row;
  return nullptr;
}

// The backends at `bytes` for which no other is clearly faster.
std::vector<std::string> fastest_at(const BenchReport& report,
                                    std::size_t bytes) {
  constexpr double kClearly = 0.95;
  std::vector<std::pair<double, std::string>> times;
  for (const BackendRows& backend : report.backends)
    if (const BenchRow* const row = row_of(backend, bytes))
      times.emplace_back(row->timings.p50.count(), backend.name);
  const double best = std::ranges::min(times).first;
  std::vector<std::string> names;
  for (const auto& [time, name] : times)
    if (kClearly * time <= best) names.push_back(name);
  return names;
}

// The elements of `some` that are also in `others`, in the order of `some`.
std::vector<std::string> in_both(const std::vector<std::string>& some,
                                 const std::vector<std::string>& others) {
  std::vector<std::string> names;
  std::ranges::copy_if(some, std::back_inserter(names), [&](const auto& name) {
    return std::ranges::find(others, name) != others.end();
  });
  return names;
}

}  // namespace

std::vector<FastestFrom> fastest_backends(const BenchReport& report) {
  std::set<std::size_t> sizes;
  for (const BackendRows& backend : report.backends)
    for (const BenchRow& row : backend.rows) sizes.insert(row.bytes);
  std::vector<FastestFrom> ranges;
  for (const std::size_t bytes : sizes) {
    std::vector<std::string> best = fastest_at(report, bytes);
    std::vector<std::string> still;
    if (!ranges.empty()) still = in_both(ranges.back().backends, best);
    if (still.empty())
      ranges.push_back({.bytes = bytes, .backends = std::move(best)});
    else
      ranges.back().backends = std::move(still);
  }
  return ranges;
}

std::string table_head(const BenchReport& report) {
  std::string head = fmt::format("{}, {} rank{}", title_of(report),
                                 report.ranks, report.ranks == 1 ? "" : "s");
  if (!is_on_cpu(report))
    head += fmt::format(", on {} ({})", report.device, report.libraries);
  else if (report.what.collective != BenchCollective::kBarrier)
    head += fmt::format(", {} memory", name_of(report.what.memory));
  head += "; every result verified\n\n";
  head += fmt::format("{:<{}}{:>12}{:>12}", "backend", kNameWidth, "bytes",
                      "count");
  for (const auto* column : {"p50 µs", "p99 µs", "alg GB/s", "bus GB/s"})
    head += right_aligned(column, 9);
  return head + right_aligned("rounds", 8) + "\n";
}

std::string table_row(const std::string& backend, const BenchRow& row) {
  const auto speed = [&](double bytes_per_second) {
    return row.bytes == 0 ? std::string("-") : figure(bytes_per_second / kGiga);
  };
  return fmt::format(
      "{:<{}}{:>12}{:>12}{:>9}{:>9}{:>9}{:>9}{:>8}\n", backend, kNameWidth,
      row.bytes, row.count, figure(microseconds(row.timings.p50)),
      figure(microseconds(row.timings.p99)), speed(row.bandwidth.algorithm),
      speed(row.bandwidth.bus), row.timings.rounds);
}

std::string table_end(const BenchReport& report) {
  std::string end;
  for (const BackendRows& backend : report.backends)
    if (!backend.left_out.empty())
      end += fmt::format("{} left out: {}\n", backend.name, backend.left_out);
  std::size_t measured = 0;
  for (const BackendRows& backend : report.backends)
    measured += backend.rows.empty() ? 0 : 1;
  if (measured > 1) {
    for (const FastestFrom& range : fastest_backends(report))
      end += report.what.collective == BenchCollective::kBarrier
                 ? fmt::format("fastest: {}\n", fmt::join(range.backends, ", "))
                 : fmt::format("fastest from {} on: {}\n",
                               describe_bytes(range.bytes),
                               fmt::join(range.backends, ", "));
  }
  return end.empty() ? end : "\n" + end;
}

std::string to_json(const BenchReport& report) {
  Json document{{"lockstep", version()},
                {"collective", name_of(report.what.collective)},
                {"ranks", report.ranks},
                {"device", report.device}};
  if (!is_on_cpu(report)) document["libraries"] = report.libraries;
  if (report.what.collective != BenchCollective::kBarrier) {
    document["dtype"] = name_of(report.what.type);
    document["in_place"] = is_in_place(report.what.collective);
    if (is_on_cpu(report)) document["memory"] = name_of(report.what.memory);
  }
  if (reduces(report.what.collective)) document["op"] = name_of(report.what.op);
  document["backends"] = Json::array();
  for (const BackendRows& backend : report.backends)
    document["backends"].push_back(json_of(backend));
  document["fastest"] = Json::array();
  for (const FastestFrom& range : fastest_backends(report))
    document["fastest"].push_back(
        {{"from_bytes", range.bytes}, {"backends", range.backends}});
  constexpr int kIndent = 1;
  return document.dump(kIndent) + "\n";
}

std::string gnuplot_script(const BenchReport& report, const std::string& file) {
  std::string data;
  std::string curves;
  for (std::size_t i = 0; i < report.backends.size(); ++i) {
    const BackendRows& backend = report.backends[i];
    if (backend.rows.empty()) continue;
    data += fmt::format("$backend{} << END\n", i);
    for (const BenchRow& row : backend.rows)
      data += fmt::format("{} {}\n", row.bytes, microseconds(row.timings.p50));
    data += "END\n";
    curves += fmt::format(
        "{} $backend{} using 1:2 title {} with linespoints pointtype 7 "
        "linewidth 2 linecolor rgb '{}'",
        curves.empty() ? "plot" : ",", i, gnuplot_text(backend.name),
        kPlotColors[i % kPlotColors.size()]);
  }
  const std::string title =
      fmt::format("{}, {} ranks{}", title_of(report), report.ranks,
                  is_on_cpu(report) ? "" : " on " + report.device);
  return fmt::format(
      "{}set encoding utf8\nset terminal {}\nset output {}\nset title {}\n"
      "set logscale xy\nset format '%.0s%c'\nset grid\nset key top left\n"
      "set xlabel 'bytes'\nset ylabel 'time (p50), µs'\n{}\n",
      data,
      file.ends_with(".png") ? "pngcairo size 1520,960 fontscale 1.6 noenhanced"
                             : "svg size 760,480 dynamic noenhanced",
      gnuplot_text(file), gnuplot_text(title), curves);
}

}  // namespace lockstep
