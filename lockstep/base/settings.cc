#include "lockstep/base/settings.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>

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

void read_membership(const EnvironmentLookup& lookup, Settings& settings) {
  constexpr int kMost = std::numeric_limits<int>::max();
  settings.rank = read_number(lookup, "RANK", 0, kMost);
  settings.world_size = read_number(lookup, "WORLD_SIZE", 1, kMost);
  settings.local_rank = read_number(lookup, "LOCAL_RANK", 0, kMost);
  settings.local_world_size = read_number(lookup, "LOCAL_WORLD_SIZE", 1, kMost);
  settings.master_address = lookup("MASTER_ADDR");
  settings.master_port = read_number(lookup, "MASTER_PORT", 0, 65535);
  if (settings.rank && settings.world_size &&
      *settings.rank >= *settings.world_size)
    throw InvalidArgument(fmt::format(
        "RANK is {} but WORLD_SIZE is {}: ranks count from 0, so RANK must be "
        "at most {}",
        *settings.rank, *settings.world_size, *settings.world_size - 1));
}

}  // namespace

Settings Settings::read(const EnvironmentLookup& lookup) {
  using Seconds = std::chrono::duration<double>;
  constexpr double kYear = 365.0 * 24 * 3600;
  Settings settings;
  read_membership(lookup, settings);
  settings.store = lookup("LOCKSTEP_STORE");
  settings.token = lookup("LOCKSTEP_TOKEN").value_or("");
  settings.backend = lookup("LOCKSTEP_BACKEND").value_or(settings.backend);
  if (const auto s = read_number(lookup, "LOCKSTEP_TIMEOUT", 0.001, kYear))
    settings.timeout = Seconds(*s);
  if (const auto s =
          read_number(lookup, "LOCKSTEP_RENDEZVOUS_TIMEOUT", 0.001, kYear))
    settings.rendezvous_timeout = Seconds(*s);
  if (const auto bytes =
          read_number(lookup, "LOCKSTEP_HEAP_BYTES", std::size_t{0},
                      std::numeric_limits<std::size_t>::max() / 2))
    settings.heap_bytes = *bytes;
  settings.progress_fd = read_number(lookup, "LOCKSTEP_PROGRESS_FD", 0,
                                     std::numeric_limits<int>::max());
  if (const auto level = lookup("LOCKSTEP_LOG"))
    settings.log_level = parse_log_level(*level);
  return settings;
}

Settings Settings::from_environment() {
  return read([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

}  // namespace lockstep
