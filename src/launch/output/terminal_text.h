// Makes a line of arbitrary bytes safe to show on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// `line` without bytes that move the cursor or change the terminal's state:
// control characters become "?", escape sequences are removed, except colours,
// which end with the line. Tabs stay.
std::string safe_for_terminal(std::string_view line);

}  // namespace lockstep
