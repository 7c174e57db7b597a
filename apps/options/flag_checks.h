// What the values of our flags may be: checks with readable messages.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/number_in.h"

namespace lockstep {

// A check for CLI::Option::check(): returns what is wrong with the text, or "".
using FlagCheck = std::function<std::string(const std::string&)>;

// A whole number from `least` to `most`; without `most`, up to the limit of the
// flag's type.
FlagCheck whole_number(std::int64_t least);
FlagCheck whole_number(std::int64_t least, std::int64_t most);

// The entries of a list such as "1,2", empty ones too: CLI11's own delimiter
// leaves them out, so that a slip of the hand would change the list unseen.
std::vector<std::string> entries_of(const std::string& list);

// Each entry of such a list passes `entry`.
FlagCheck list_of(FlagCheck entry);

// The numbers of such a list, which list_of(whole_number(…)) has passed.
template <class Number>
std::vector<Number> numbers_in(const std::string& list) {
  std::vector<Number> numbers;
  for (const std::string& entry : entries_of(list))
    numbers.push_back(number_in<Number>(entry).value());
  return numbers;
}

// A number from `least`; below `below`.
FlagCheck number(double least, double below);

// A number greater than zero.
FlagCheck positive_number();

// One of `known`; `what` is the kind of name ("model").
FlagCheck one_of(std::string what, std::span<const std::string_view> known);

// The shortest text that stands for exactly this number: "0.1".
std::string shortest_text(double number);

}  // namespace lockstep
