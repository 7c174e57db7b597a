#include "apps/options/flag_checks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "src/base/suggest.h"

namespace lockstep {
namespace {

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

}  // namespace

FlagCheck whole_number(std::int64_t least) {
  // Every count of our flags fits into 32 bits, so an accepted value is stored
  // without truncation.
  return whole_number(least, std::numeric_limits<std::int32_t>::max());
}

FlagCheck whole_number(std::int64_t least, std::int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    const auto value = number_in<std::int64_t>(text);
    if (value && *value >= least && *value <= most) return "";
    return quoted(text) + " is not a whole number from " +
           std::to_string(least) + " to " + std::to_string(most);
  };
}

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    entries.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

FlagCheck list_of(FlagCheck entry) {
  return [entry = std::move(entry)](const std::string& text) -> std::string {
    for (const std::string& one : entries_of(text))
      if (std::string problem = entry(one); !problem.empty()) return problem;
    return "";
  };
}

FlagCheck number(double least, double below) {
  return [least, below](const std::string& text) -> std::string {
    const auto value = number_in<double>(text);
    if (value && *value >= least && *value < below) return "";
    const std::string problem =
        quoted(text) + " is not a number from " + shortest_text(least);
    if (std::isinf(below)) return problem + " on";
    return problem + " up to, but not including, " + shortest_text(below);
  };
}

FlagCheck positive_number() {
  return [](const std::string& text) -> std::string {
    const auto value = number_in<double>(text);
    if (value && *value > 0 && std::isfinite(*value)) return "";
    return quoted(text) + " is not a number greater than 0";
  };
}

FlagCheck one_of(std::string what, std::span<const std::string_view> known) {
  return
      [what = std::move(what), names = std::vector(known.begin(), known.end())](
          const std::string& text) {
        const bool found = std::ranges::find(names, text) != names.end();
        return found ? std::string() : unknown_name(what, text, names);
      };
}

std::string shortest_text(double number) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

}  // namespace lockstep
