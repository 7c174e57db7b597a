#include "src/base/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

#include "src/base/exit_codes.h"
#include "src/base/printable.h"

namespace lockstep {
namespace {

// Bytes that continue a character of UTF-8 take no room.
std::size_t width_of(std::string_view text) {
  const auto continuing = std::ranges::count_if(text, continues_character);
  return text.size() - static_cast<std::size_t>(continuing);
}

std::string blanks_for(std::string_view text, std::size_t width) {
  return std::string(width - std::min(width, width_of(text)), ' ');
}

template <class Word>
std::string list_first(std::size_t most, const std::vector<Word>& words) {
  const std::span shown(words.data(), std::min(words.size(), most));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     words.size() > most
                         ? fmt::format(" and {} more", words.size() - most)
                         : "");
}

}  // namespace

int print_report(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0)
    return 0;
  const int reason = errno;
  std::fprintf(stderr, "lockstep: the output cannot be written: %s\n",
               std::strerror(reason));
  return kExitFailed;
}

std::string with_thousands(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t place = digits.size(); place > first + 3;)
    digits.insert(place -= 3, 1, ',');
  return digits;
}

std::string fixed_number(double number, int decimals) {
  if (std::isnan(number)) return "nan";
  return fmt::format("{:.{}f}", number, decimals);
}

std::string percent(double share, int decimals) {
  if (std::isnan(share)) return "-";
  return fmt::format("{:.{}f} %", 100 * share, decimals);
}

std::string list_some(const std::vector<std::string>& words) {
  constexpr std::size_t kMost = 8;
  return list_first(kMost, words);
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s",
                     list_first(kMost, ranks));
}

std::string ranges_in(const std::vector<int>& numbers) {
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first;
    while (last + 1 != numbers.end() && *(last + 1) == *last + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", *first);
    if (last != first) text += fmt::format("-{}", *last);
    first = last + 1;
  }
  return text;
}

std::string right_aligned(const std::string& text, std::size_t width) {
  return blanks_for(text, width) + text;
}

std::string aligned_table(const std::vector<std::vector<std::string>>& rows,
                          const TableLayout& layout) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line(layout.left);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += layout.between;
      line += i < layout.left_aligned ? row[i] + blanks_for(row[i], widths[i])
                                      : right_aligned(row[i], widths[i]);
    }
    line += layout.right;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace lockstep
