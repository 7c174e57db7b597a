// The results of `lockstep scale`, the speed of one job on 1, 2, 4, … ranks, as
// a table, as Markdown and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// One run of the job.
struct ScaleRun {
  double images_per_second = 0;           // summed over all ranks
  std::optional<double> epoch_seconds{};  // nothing: not reported
  // Processor time of the job and its descendants over its wall time: 2 when
  // two cores were busy from start to end, including start-up.
  double cores_busy = 0;
  // The same for all GPUs of this host while the job trained: 2 when two were
  // busy all the time. Nothing: the host has no GPU, or its driver does not
  // report it.
  std::optional<double> gpus_busy{};
};

// All runs with one world size.
struct ScaleRow {
  int ranks = 1;
  // For our own jobs: compute threads per rank (nothing: LibTorch's choice),
  // and images per step of all ranks and of one rank.
  std::optional<int> threads{};
  std::optional<std::int64_t> global_batch{};
  std::optional<std::int64_t> batch_per_rank{};
  std::vector<ScaleRun> runs;  // never empty
};

// One job with ascending world sizes.
struct ScaleSeries {
  std::string name;
  std::vector<ScaleRow> rows;
};

// A report has at least one series with at least one row; all functions below
// require that.
struct ScaleReport {
  int cores = 1;          // cores of this host that the jobs could use
  std::string machine{};  // the processor's name; empty: unknown
  std::string job{};      // model, data and batch size
  // Rows divide the same cores in different ways instead of using more.
  bool layouts = false;
  // Our own series, then the compared ones, with the same world sizes.
  std::vector<ScaleSeries> series;
};

// Figures of a row: medians over its runs.
struct ScaleFigures {
  double images_per_second = 0;
  std::optional<double> epoch_seconds;
  double cores_busy = 0;
  std::optional<double> gpus_busy;
  // Images per second relative to the series' first row.
  double speed_up = 1;
  // Speed-up over the growth of the compute threads of all ranks: 1 is ideal.
  double efficiency = 1;
  // The largest difference of two runs' images per second, over the median.
  double spread = 0;
};

ScaleFigures figures_of(const ScaleSeries& series, const ScaleRow& row);

// "Lockstep: convnet on mnist, global batch 128, on 2 cores of …".
std::string title_of(const ScaleReport& report, const ScaleSeries& series);

// For a terminal.
std::string to_text(const ScaleReport& report);

std::string to_markdown(const ScaleReport& report);

// One document; docs/guides/scale.md describes it.
std::string to_json(const ScaleReport& report);

}  // namespace lockstep
