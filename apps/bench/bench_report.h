// The results of `lockstep bench` as a table, as JSON and as a plot.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/bench/bench_measure.h"

namespace lockstep {

// One size on one backend; its result was verified.
struct BenchRow {
  std::size_t bytes = 0;
  std::size_t count = 0;  // elements per block, as in nccl-tests
  Timings timings;
  Bandwidth bandwidth;
};

struct BackendRows {
  std::string name;
  std::vector<BenchRow> rows;
  // Why the backend was not, or not fully, measured; empty: it was.
  std::string left_out;
};

struct BenchReport {
  CollectiveCase what;
  int ranks = 1;
  std::string device = "cpu";  // or cuda
  std::string libraries{};     // for the device: "CUDA 13.0, NCCL 2.28.3"
  std::vector<BackendRows> backends;
};

// The size from which these backends are the fastest; several when they take
// the same time.
struct FastestFrom {
  std::size_t bytes = 0;
  std::vector<std::string> backends;
};

// By ascending size. Backends that differ by less than 5 % are equally fast,
// and none of them displaces the previous fastest ones.
std::vector<FastestFrom> fastest_backends(const BenchReport& report);

// The table's parts in the order of measurement: title and header, a row, and
// the summary.
std::string table_head(const BenchReport& report);
std::string table_row(const std::string& backend, const BenchRow& row);
std::string table_end(const BenchReport& report);

// One JSON document; its keys are the table's columns with units.
std::string to_json(const BenchReport& report);

// The gnuplot script that draws the p50 of each backend, in microseconds,
// against bytes, into `file`: PNG where its name ends so, otherwise SVG.
std::string gnuplot_script(const BenchReport& report, const std::string& file);

}  // namespace lockstep
