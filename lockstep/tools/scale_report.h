// What `lockstep scale` found: how fast one job is on 1, 2, 4, … ranks, as a
// table, as Markdown and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// One run of the job.
struct ScaleRun {
  double images_per_second = 0;           // of all ranks together
  std::optional<double> epoch_seconds{};  // nothing: the job does not say
  // Processor time of the job and all that it started, over its time: 2 where
  // two cores were busy from its start to its end, start-up included.
  double cores_busy = 0;
  // The same of GPUs, of all of this host, while the job trained: 2 where two
  // were busy all the time. Nothing: the host has no GPU, or its driver does
  // not say.
  std::optional<double> gpus_busy{};
};

// All runs on one number of ranks.
struct ScaleRow {
  int ranks = 1;
  // Of a job of ours: compute threads of a rank (nothing: LibTorch's choice),
  // and images in a step of all ranks and of one.
  std::optional<int> threads{};
  std::optional<std::int64_t> global_batch{};
  std::optional<std::int64_t> batch_per_rank{};
  std::vector<ScaleRun> runs;  // never empty
};

// One job, on ascending numbers of ranks.
struct ScaleSeries {
  std::string name;
  std::vector<ScaleRow> rows;
};

// A report has a series, with a row; all its functions ask for that.
struct ScaleReport {
  int cores = 1;          // of this host, that the jobs could use
  std::string machine{};  // the name of its processor; empty: not known
  std::string job{};      // model, data and batch
  // Rows divide the cores in different ways, in the place of using more.
  bool layouts = false;
  // Ours, then those that are put beside it, on the same numbers of ranks.
  std::vector<ScaleSeries> series;
};

// What follows from a row. Medians over its runs.
struct ScaleFigures {
  double images_per_second = 0;
  std::optional<double> epoch_seconds;
  double cores_busy = 0;
  std::optional<double> gpus_busy;
  // Images a second over those of the series' first row.
  double speed_up = 1;
  // Speed-up over how many times as many compute threads these are, those of
  // all ranks together: 1 is ideal.
  double efficiency = 1;
  // The largest distance of two runs' images a second, over the median.
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
