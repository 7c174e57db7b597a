#include "src/base/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

template <class Number>
std::optional<Number> read_number(const EnvironmentLookup& lookup,
                                  const char* name, Number least, Number most) {
  const auto text = lookup(name);
  if (!text) return std::nullopt;
  Number value{};
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end || !(value >= least) ||
      !(value <= most))
    throw InvalidArgument(fmt::format(
        "the environment variable {} is \"{}\"; it must be a number from {} to "
        "{}",
        name, *text, least, most));
  return value;
}

}  // namespace

EnvironmentLookup without_empty(EnvironmentLookup lookup) {
  return [lookup = std::move(lookup)](
             const std::string& name) -> std::optional<std::string> {
    auto value = lookup(name);
    if (!value || !value->empty()) return value;
    for (const char* start : {"LOCKSTEP_", "MASTER_", "TORCHELASTIC_"})
      if (name.starts_with(start)) return std::nullopt;
    return value;
  };
}

std::optional<std::int64_t> read_integer(const EnvironmentLookup& lookup,
                                         const char* name, std::int64_t least,
                                         std::int64_t most) {
  return read_number(lookup, name, least, most);
}

std::optional<double> read_real(const EnvironmentLookup& lookup,
                                const char* name, double least, double most) {
  return read_number(lookup, name, least, most);
}

}  // namespace lockstep
