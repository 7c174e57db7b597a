// What `lockstep bench` found, as a table, as JSON and as a plot.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/tools/bench_measure.h"
#include "lockstep/tools/bench_plot.h"

namespace lockstep {

// One size on one backend; its result was verified.
struct BenchRow {
  std::size_t bytes = 0;
  std::size_t count = 0;  // elements of a block, as nccl-tests count them
  Timings timings;
  Bandwidth bandwidth;
};

struct BackendRows {
  std::string name;
  std::vector<BenchRow> rows;
  // Why it took no part, or no longer; empty: it did.
  std::string left_out;
};

struct BenchReport {
  CollectiveCase what;
  int ranks = 1;
  std::string device = "cpu";  // or cuda
  std::string libraries{};     // that reach it: "CUDA 13.0, NCCL 2.28.3"
  std::vector<BackendRows> backends;
};

// From which size on these backends are the fastest: several where they take
// the same time.
struct FastestFrom {
  std::size_t bytes = 0;
  std::vector<std::string> backends;
};

// By ascending size. A difference of less than a twentieth is noise: such
// backends are equally fast, and none takes the place of those before it.
std::vector<FastestFrom> fastest_backends(const BenchReport& report);

// The table, piece by piece as it is measured: what it is about and its head, a
// row, and what follows from all of them.
std::string table_head(const BenchReport& report);
std::string table_row(const std::string& backend, const BenchRow& row);
std::string table_end(const BenchReport& report);

// One document, whose names are those of the table and their units.
std::string to_json(const BenchReport& report);

// The p50 of each backend, in microseconds, against bytes.
Plot plot_of(const BenchReport& report);

}  // namespace lockstep
