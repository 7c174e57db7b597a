#include "src/launch/record/oom_kills.h"

#include <charconv>
#include <cstddef>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"

namespace lockstep {

std::optional<std::int64_t> oom_kills_in(std::string_view vmstat) {
  constexpr std::string_view kName = "\noom_kill ";
  const std::size_t place = vmstat.find(kName);
  if (place == std::string_view::npos) return std::nullopt;
  const std::string_view number = vmstat.substr(place + kName.size());
  std::int64_t count = 0;
  const auto [stop, error] =
      std::from_chars(number.data(), number.data() + number.size(), count);
  if (error != std::errc()) return std::nullopt;
  return count;
}

std::optional<std::int64_t> count_oom_kills() try {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
  return oom_kills_in(read_text_file("/proc/vmstat", kMostBytes));
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace lockstep
