#include "src/torch/verify/consistency_table.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>
#include <utility>

#include "src/base/report_text.h"
#include "src/torch/compare/replica_difference.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostRanks = 8;  // with values shown

const char* word_for(Expected expected) {
  switch (expected) {
    case Expected::kEqual:
      return "equal";
    case Expected::kDifferent:
      return "different";
    case Expected::kEither:
      return "either";
  }
  return "";
}

// Groups of ranks with equal fingerprints, in the order of their first ranks.
std::vector<std::vector<int>> classes_of(std::span<const Fingerprint> by_rank) {
  std::map<Fingerprint, std::vector<int>> ranks_with;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
    ranks_with[by_rank[rank]].push_back(static_cast<int>(rank));
  std::vector<std::vector<int>> classes;
  for (auto& [fingerprint, ranks] : ranks_with)
    classes.push_back(std::move(ranks));
  std::ranges::sort(classes);
  return classes;
}

std::string joined(const std::vector<double>& values) {
  std::ostringstream text;
  text << std::setprecision(4);
  for (std::size_t i = 0; i < values.size(); ++i)
    text << (i > 0 ? " " : "") << values[i];
  return values.empty() ? "none" : text.str();
}

std::string left_aligned(const std::vector<std::vector<std::string>>& lines) {
  return aligned_table(lines, {.left_aligned = std::string::npos});
}

// Steps that share a column.
struct Column {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::string title;
};

std::vector<Column> columns_of(std::span<const ConsistencyRow> rows) {
  const std::int64_t last =
      std::ranges::max(rows, {}, &ConsistencyRow::step).step;
  std::vector<Column> columns;
  if (std::ranges::find(rows, 0, &ConsistencyRow::step) != rows.end())
    columns.push_back({0, 0, "at start"});
  if (last >= 1) columns.push_back({1, 1, "step 1"});
  if (last == 2) columns.push_back({2, 2, "step 2"});
  if (last > 2)
    columns.push_back({2, last, "steps 2 to " + std::to_string(last)});
  return columns;
}

// The requirement of one quantity's rows: the wrong row's, or that of all.
const char* requirement_of(const std::vector<ConsistencyRow>& rows) {
  auto row = std::ranges::find(rows, false, &ConsistencyRow::right);
  if (row == rows.end())
    row = std::ranges::find(rows, Expected::kEither, &ConsistencyRow::must);
  return word_for(row == rows.end() ? rows.front().must : row->must);
}

// The findings of `rows`, of one quantity, in the column's steps: the first
// wrong one, or all.
std::string cell_of(const Column& column,
                    const std::vector<ConsistencyRow>& rows) {
  std::vector<std::string> found;
  for (const ConsistencyRow& row : rows) {
    if (row.step < column.first || row.step > column.last) continue;
    if (!row.right)
      return row.found + (column.first == column.last
                              ? ""
                              : " in step " + std::to_string(row.step));
    if (std::ranges::find(found, row.found) == found.end())
      found.push_back(row.found);
  }
  std::string text;
  for (const std::string& one : found)
    text += (text.empty() ? "" : " or ") + one;
  return text;
}

}  // namespace

ConsistencyRow compare(std::string what, Expected must,
                       std::span<const Fingerprint> by_rank) {
  ConsistencyRow row{.step = 0,
                     .what = std::move(what),
                     .must = must,
                     .found = "one rank",
                     .right = true};
  if (by_rank.size() == 1) return row;
  const std::size_t classes = classes_of(by_rank).size();
  if (classes == 1)
    row.found = "equal";
  else if (classes == by_rank.size())
    row.found = "different";
  else
    row.found = "equal on " + equal_ranks(by_rank);
  row.right =
      must == Expected::kEither ||
      (must == Expected::kEqual ? classes == 1 : classes == by_rank.size());
  return row;
}

std::string equal_ranks(std::span<const Fingerprint> by_rank) {
  std::string text;
  for (const std::vector<int>& ranks : classes_of(by_rank))
    if (ranks.size() > 1)
      text += (text.empty() ? "" : " and on ") + name_ranks(ranks);
  return text;
}

std::string table_of(std::span<const ConsistencyRow> rows, int ranks) {
  if (rows.empty()) return "";
  const std::vector<Column> columns = columns_of(rows);
  std::vector<std::string> things;
  for (const ConsistencyRow& row : rows)
    if (std::ranges::find(things, row.what) == things.end())
      things.push_back(row.what);
  std::vector<std::vector<std::string>> lines{
      {"consistency of " + std::to_string(ranks) +
           (ranks == 1 ? " rank" : " ranks"),
       "must be"}};
  for (const Column& column : columns) lines[0].push_back(column.title);
  for (const std::string& what : things) {
    std::vector<ConsistencyRow> of_thing;
    for (const ConsistencyRow& row : rows)
      if (row.what == what) of_thing.push_back(row);
    lines.push_back({"  " + what, requirement_of(of_thing)});
    for (const Column& column : columns)
      lines.back().push_back(cell_of(column, of_thing));
    if (!std::ranges::all_of(of_thing, &ConsistencyRow::right))
      lines.back().push_back("<-- WRONG");
  }
  return left_aligned(lines);
}

std::string text_of(const ConsistencyVerdict& verdict) {
  return "verdict: the ranks are not consistent: " + verdict.what +
         (verdict.step == 0 ? ", before step 1"
                            : ", in step " + std::to_string(verdict.step)) +
         "\n  where:   " + verdict.where + "\n  likely:  " + verdict.likely +
         "\n  next:    " + verdict.next;
}

std::string table_of(std::span<const ValuesRow> rows, std::int64_t step) {
  if (rows.empty()) return "";
  const std::size_t ranks = std::min(rows.front().by_rank.size(), kMostRanks);
  std::vector<std::vector<std::string>> lines{
      {"first values, step " + std::to_string(step)}};
  for (std::size_t rank = 0; rank < ranks; ++rank)
    lines[0].push_back("rank " + std::to_string(rank));
  for (const ValuesRow& row : rows) {
    lines.push_back({"  " + row.what});
    for (std::size_t rank = 0; rank < ranks; ++rank)
      lines.back().push_back(joined(row.by_rank[rank]));
  }
  return left_aligned(lines);
}

}  // namespace lockstep
