// The findings of ConsistencyReport, as rows and as the text of a table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/torch/consistency.h"
#include "src/torch/compare/fingerprint.h"

namespace lockstep {

// The row for a quantity with these fingerprints, one per rank.
ConsistencyRow compare(std::string what, Expected must,
                       std::span<const Fingerprint> by_rank);

// The ranks whose fingerprint another rank shares, as "ranks 0 and 2".
std::string equal_ranks(std::span<const Fingerprint> by_rank);

// One line per quantity in `rows`, with a column for the start, one for the
// first step and one for later steps, as far as `rows` have them.
std::string table_of(std::span<const ConsistencyRow> rows, int ranks);

// Without a newline at its end.
std::string text_of(const ConsistencyVerdict& verdict);

// Values of a tensor on each rank.
struct ValuesRow {
  std::string what;
  std::vector<std::vector<double>> by_rank;
};
std::string table_of(std::span<const ValuesRow> rows, std::int64_t step);

}  // namespace lockstep
