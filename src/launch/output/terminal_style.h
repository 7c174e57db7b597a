// The abilities of an output: moving lines, colour, UTF-8 and width.
#pragma once

#include <sys/ioctl.h>

#include <optional>

#include "src/base/settings.h"

namespace lockstep {

struct TerminalStyle {
  bool moving = false;  // a terminal on which a line can be redrawn
  bool colour = false;
  bool utf8 = false;
  int columns = 80;

  friend bool operator==(const TerminalStyle&, const TerminalStyle&) = default;
};

// The style of the output `descriptor`. Lines move on a terminal unless TERM is
// "dumb" or unset. Colour needs the same, and NO_COLOR unset or empty
// (https://no-color.org). LC_ALL, LC_CTYPE or LANG decides on UTF-8.
TerminalStyle terminal_style(int descriptor, const EnvironmentLookup& lookup);

// The size of the terminal `descriptor`; empty for other files.
std::optional<winsize> terminal_window(int descriptor);

// The terminal's current width; 80 when it is unknown.
int terminal_columns(int descriptor);

}  // namespace lockstep
