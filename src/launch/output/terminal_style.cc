#include "src/launch/output/terminal_style.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string>

namespace lockstep {
namespace {

bool locale_is_utf8(const EnvironmentLookup& lookup) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string locale = lookup(name).value_or("");
    if (locale.empty()) continue;
    std::transform(locale.begin(), locale.end(), locale.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return locale.ends_with("utf-8") || locale.ends_with("utf8");
  }
  return false;
}

}  // namespace

TerminalStyle terminal_style(int descriptor, const EnvironmentLookup& lookup) {
  const std::string term = lookup("TERM").value_or("dumb");
  TerminalStyle style;
  style.utf8 = locale_is_utf8(lookup);
  style.moving = ::isatty(descriptor) == 1 && !term.empty() && term != "dumb";
  style.colour = style.moving && lookup("NO_COLOR").value_or("").empty();
  style.columns = terminal_columns(descriptor);
  return style;
}

std::optional<winsize> terminal_window(int descriptor) {
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

int terminal_columns(int descriptor) {
  constexpr int kUsual = 80;
  const auto window = terminal_window(descriptor);
  return window && window->ws_col != 0 ? window->ws_col : kUsual;
}

}  // namespace lockstep
