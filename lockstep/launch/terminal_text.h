// Makes a line of any bytes safe to show beside others on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// `line` without what would move the cursor or change the terminal's state:
// control characters become "?", escape sequences go, but for colours, which
// end with the line. Tabs stay.
std::string safe_for_terminal(std::string_view line);

}  // namespace lockstep
