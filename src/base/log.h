// Log lines on stderr, from the level that LOCKSTEP_LOG names (debug, info,
// warn, error, off; the default is warn).
//
// Threads: every function may be called from any thread.
#pragma once

#include <string_view>

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// The level called `name`; throws InvalidArgument listing the known names.
LogLevel parse_log_level(std::string_view name);

// Lines below `level` are dropped from now on.
void set_log_level(LogLevel level);

// Whether a line at `level` would be written. Call it before building a costly
// line.
bool log_enabled(LogLevel level);

// Writes one line. Must not be called with kOff.
void log(LogLevel level, std::string_view line);

}  // namespace lockstep
