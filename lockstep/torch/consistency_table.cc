#include "lockstep/torch/consistency_table.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>
#include <utility>

#include "lockstep/torch/replica_difference.h"

namespace lockstep {
namespace {

constexpr int kWhatWidth = 32;
constexpr int kWordWidth = 11;
constexpr std::size_t kMostRanks = 8;  // whose values are shown

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

// The ranks that have the same, in the order of their first.
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

// Two blanks before each column, and nothing after the last.
void append_line(std::string& text, std::span<const std::string> cells,
                 std::span<const std::size_t> widths) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    line += "  " + cells[i];
    line.append(widths[i] - cells[i].size(), ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + "\n";
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
      text += (text.empty() ? "" : " and on ") + names_of(ranks);
  return text;
}

std::string table_of(std::span<const ConsistencyRow> rows, int ranks) {
  if (rows.empty()) return "";
  std::ostringstream text;
  const std::int64_t step = rows.front().step;
  const std::string title =
      "consistency of " + std::to_string(ranks) +
      (ranks == 1 ? " rank, " : " ranks, ") +
      (step == 0 ? "at start" : "step " + std::to_string(step));
  text << std::left << std::setw(kWhatWidth + 2) << title << "  "
       << std::setw(kWordWidth) << "must be"
       << "is\n";
  for (const ConsistencyRow& row : rows)
    text << "  " << std::setw(kWhatWidth) << row.what << "  "
         << std::setw(kWordWidth) << word_for(row.must) << row.found
         << (row.right ? "" : "   <-- WRONG") << "\n";
  return text.str();
}

std::string text_of(const ConsistencyVerdict& verdict) {
  return "verdict: the ranks are not consistent: " + verdict.what +
         (verdict.step == 0 ? ", before step 1"
                            : ", in step " + std::to_string(verdict.step)) +
         "\n  where:   " + verdict.where + "\n  likely:  " + verdict.likely +
         "\n  next:    " + verdict.next;
}

std::string table_of(std::span<const ValuesRow> rows) {
  if (rows.empty()) return "";
  const std::size_t ranks = std::min(rows.front().by_rank.size(), kMostRanks);
  std::vector<std::vector<std::string>> lines{{"first values"}};
  for (std::size_t rank = 0; rank < ranks; ++rank)
    lines[0].push_back("rank " + std::to_string(rank));
  for (const ValuesRow& row : rows) {
    lines.push_back({row.what});
    for (std::size_t rank = 0; rank < ranks; ++rank)
      lines.back().push_back(joined(row.by_rank[rank]));
  }
  std::vector<std::size_t> widths(ranks + 1, 0);
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const auto& line : lines) append_line(text, line, widths);
  return text;
}

}  // namespace lockstep
