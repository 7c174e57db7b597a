#include "lockstep/launch/output/terminal_text.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr char kEscape = '\033';

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

// The length of the escape sequence at the start of `text` (ECMA-48): after "["
// up to its final byte, after "]" up to its bell; otherwise two characters.
std::size_t escape_length(std::string_view text) {
  if (text.size() < 2) return text.size();
  std::size_t end = 2;
  if (text[1] == '[') {
    while (end < text.size() && !(text[end] >= '@' && text[end] <= '~')) ++end;
  } else if (text[1] == ']') {
    while (end < text.size() && text[end] != '\a') ++end;
  } else {
    return 2;
  }
  return std::min(end + 1, text.size());
}

bool is_colour(std::string_view sequence) {
  return sequence.size() > 2 && sequence[1] == '[' && sequence.back() == 'm';
}

}  // namespace

std::string safe_for_terminal(std::string_view line) {
  std::string safe;
  bool coloured = false;
  while (!line.empty()) {
    std::size_t length = 1;
    if (line[0] == kEscape) {
      length = escape_length(line);
      if (is_colour(line.substr(0, length))) {
        coloured = true;
        safe += line.substr(0, length);
      }
    } else {
      safe += is_control(line[0]) ? '?' : line[0];
    }
    line.remove_prefix(length);
  }
  if (coloured) safe += "\033[0m";
  return safe;
}

}  // namespace lockstep
