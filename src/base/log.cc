#include "src/base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::array<std::pair<std::string_view, LogLevel>, 5> kNames{{
    {"debug", LogLevel::kDebug},
    {"info", LogLevel::kInfo},
    {"warn", LogLevel::kWarn},
    {"error", LogLevel::kError},
    {"off", LogLevel::kOff},
}};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

// One logger for the process: a log is the one thing that is global by nature.
// Never destroyed: other static objects, for example the default group's
// watchdog, may log while the process exits.
spdlog::logger& logger() {
  static auto* const instance = [] {
    auto* made = new spdlog::logger(
        "lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("lockstep %l: %v");
    made->set_level(spdlog::level::warn);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

LogLevel parse_log_level(std::string_view name) {
  for (const auto& [known, level] : kNames)
    if (known == name) return level;
  throw InvalidArgument(fmt::format(
      "LOCKSTEP_LOG is \"{}\"; it must be debug, info, warn, error or off",
      name));
}

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

bool log_enabled(LogLevel level) {
  return logger().should_log(to_spdlog(level));
}

void log(LogLevel level, std::string_view line) {
  logger().log(to_spdlog(level), "{}", line);
}

}  // namespace lockstep
