// Tables of the names that an option takes: arrays of structs with a `name`.
// Each table stands once: the flag, its help and the code that acts on the name
// read the same one.
//
// Threads: any thread.
// Errors:  InvalidArgument for a name that is not in the table, with the known
//          ones and the nearest.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/suggest.h"

namespace lockstep {

// A row whose only facts are the value that the name stands for and, for people
// to whom the name is not enough, its meaning.
template <class Value>
struct NamedValue {
  std::string_view name;
  Value value;
  std::string_view meaning{};
};

// The names in the table's order.
template <class Table>
std::vector<std::string_view> names_in(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

// The row of `name`; `what` is the kind of name, for the error ("model").
template <class Table>
const typename Table::value_type& row_named(const Table& table,
                                            std::string_view what,
                                            std::string_view name) {
  for (const auto& row : table)
    if (row.name == name) return row;
  throw InvalidArgument(unknown_name(what, name, names_in(table)));
}

// The name of `value`, which is in the table.
template <class Table, class Value>
std::string_view name_of(const Table& table, const Value& value) {
  return std::ranges::find(table, value, &Table::value_type::value)->name;
}

// "a, b or c", where `conjunction` is "or".
std::string listed(const std::vector<std::string>& words,
                   std::string_view conjunction);

// The names of the rows that `fits` accepts, in that form; a meaning follows
// its name in brackets.
template <class Table, class Fits>
std::string list_names(const Table& table, std::string_view conjunction,
                       Fits fits) {
  std::vector<std::string> words;
  for (const auto& row : table) {
    if (!fits(row)) continue;
    words.emplace_back(row.name);
    if constexpr (requires { row.meaning; })
      if (!row.meaning.empty())
        words.back() += " (" + std::string(row.meaning) + ")";
  }
  return listed(words, conjunction);
}

// The same of all rows, for a flag's help.
template <class Table>
std::string list_names(const Table& table) {
  return list_names(table, "or", [](const auto&) { return true; });
}

}  // namespace lockstep
