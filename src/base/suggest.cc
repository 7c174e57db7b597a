#include "src/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace lockstep {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// The shortest name that `typed` begins, if it has at least three letters.
std::string_view shortest_with_beginning(
    std::string_view typed, std::span<const std::string_view> known) {
  constexpr std::size_t kLetters = 3;
  const std::size_t dashes =
      std::min(typed.find_first_not_of('-'), typed.size());
  std::string_view best;
  if (typed.size() - dashes < kLetters) return best;
  for (const std::string_view name : known)
    if (name.starts_with(typed) && (best.empty() || name.size() < best.size()))
      best = name;
  return best;
}

}  // namespace

std::string nearest_name(std::string_view typed,
                         std::span<const std::string_view> known) {
  if (const auto whole = shortest_with_beginning(typed, known); !whole.empty())
    return std::string(whole);
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, typed.size() / 3) + 1;
  for (const std::string_view name : known) {
    const std::size_t distance = edit_distance(typed, name);
    if (distance >= best_distance || distance >= name.size()) continue;
    best = name;
    best_distance = distance;
  }
  return std::string(best);
}

std::string unknown_name(std::string_view what, std::string_view typed,
                         std::span<const std::string_view> known) {
  const std::string nearest = nearest_name(typed, known);
  return fmt::format(
      "unknown {} \"{}\"{} Known: {}", what, typed,
      nearest.empty() ? "." : fmt::format(": did you mean \"{}\"?", nearest),
      fmt::join(known, ", "));
}

}  // namespace lockstep
