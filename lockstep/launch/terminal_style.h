// What a descriptor can show: whether a line may move, in colour, in which
// characters, and how wide.
#pragma once

#include <sys/ioctl.h>

#include <optional>

#include "lockstep/base/settings.h"

namespace lockstep {

struct TerminalStyle {
  bool moving = false;  // a terminal on which a line can be drawn anew
  bool colour = false;
  bool utf8 = false;
  int columns = 80;

  friend bool operator==(const TerminalStyle&, const TerminalStyle&) = default;
};

// The style of what `descriptor` leads to. Not moving: anything but a terminal,
// or TERM is "dumb" or unset. No colour: likewise, or NO_COLOR is set and not
// empty (https://no-color.org). UTF-8: as LC_ALL, LC_CTYPE or LANG says.
TerminalStyle terminal_style(int descriptor, const EnvironmentLookup& lookup);

// The size of the terminal that `descriptor` leads to; empty for all else.
std::optional<winsize> terminal_window(int descriptor);

// The terminal's width now; 80 where it has none to tell.
int terminal_columns(int descriptor);

}  // namespace lockstep
