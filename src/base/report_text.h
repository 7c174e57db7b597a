// Numbers and tables as text for people.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Writes `text` to standard output. Returns the exit code: kExitFailed, and a
// line on standard error, if it cannot be written.
int print_report(const std::string& text);

// 1234567 as "1,234,567".
std::string with_thousands(std::int64_t number);

// With so many decimals. NaN has no sign, whatever its bits say.
std::string fixed_number(double number, int decimals);

// 0.9182 with one decimal as "91.8 %"; NaN as "-".
std::string percent(double share, int decimals);

// "rank 1", "ranks 0, 2, 3"; after the first 16 " and 4 more".
std::string name_ranks(const std::vector<int>& ranks);

// "a, b"; after the first 8 " and 4 more".
std::string list_some(const std::vector<std::string>& words);

// Ascending numbers as "0-3,8".
std::string ranges_in(const std::vector<int>& numbers);

// `text` after as many blanks as make it `width` characters of UTF-8 wide.
std::string right_aligned(const std::string& text, std::size_t width);

struct TableLayout {
  // Before the first column, between columns, and after the last.
  std::string_view left{};
  std::string_view between = "  ";
  std::string_view right{};
  // The number of columns, from the first, that are left-aligned; the others
  // are right-aligned.
  std::size_t left_aligned = 0;
};

// One line per row, without blanks at its end. Each column is as wide as its
// widest cell; a row may have fewer cells than others.
std::string aligned_table(const std::vector<std::vector<std::string>>& rows,
                          const TableLayout& layout = {});

}  // namespace lockstep
