#include "src/launch/output/terminal_text.h"

#include <algorithm>

namespace lockstep {
namespace {

// The sequences are those of ECMA-48, 5th edition, sections 5.3 to 5.6, and the
// bell as the end of a control string, as in xterm.
constexpr char kEscape = '\033';
constexpr char kBell = '\a';
constexpr std::string_view kStringTerminator = "\033\\";
// U+0080 to U+009F, the C1 controls, are this byte and 0x80 to 0x9f.
constexpr char kC1Lead = '\xc2';
constexpr std::string_view kC1StringTerminator = "\xc2\x9c";

bool is_between(char c, int first, int last) {
  const int byte = static_cast<unsigned char>(c);
  return byte >= first && byte <= last;
}

bool starts_with_c1(std::string_view text) {
  return text.size() > 1 && text[0] == kC1Lead &&
         is_between(text[1], 0x80, 0x9f);
}

// The length of the control character at the start of `text`; 0: no such.
std::size_t control_length(std::string_view text) {
  if (starts_with_c1(text)) return 2;
  const bool is_c0 = is_between(text[0], 0, 0x1f) && text[0] != '\t';
  return is_c0 || text[0] == '\x7f' ? 1 : 0;
}

std::size_t skip(std::string_view text, std::size_t at, int first, int last) {
  while (at < text.size() && is_between(text[at], first, last)) ++at;
  return at;
}

// The place after the final byte at `at`, or `at` in a malformed sequence.
std::size_t after_final(std::string_view text, std::size_t at, int first) {
  return at < text.size() && is_between(text[at], first, 0x7e) ? at + 1 : at;
}

// The end of a control sequence whose parameters begin at `at`.
std::size_t control_sequence_end(std::string_view text, std::size_t at) {
  at = skip(text, at, 0x30, 0x3f);
  return after_final(text, skip(text, at, 0x20, 0x2f), 0x40);
}

// The end of a control string whose body begins at `at`. CAN, SUB and another
// escape sequence abort it.
std::size_t control_string_end(std::string_view text, std::size_t at) {
  constexpr char kCancel = '\x18';
  constexpr char kSubstitute = '\x1a';
  for (; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    if (rest[0] == kBell) return at + 1;
    if (rest.starts_with(kStringTerminator) ||
        rest.starts_with(kC1StringTerminator))
      return at + 2;
    if (rest[0] == kEscape || rest[0] == kCancel || rest[0] == kSubstitute)
      return at;
  }
  return at;
}

// The letter after ESC of the sequence that `text` begins with: a C1 control
// means ESC and the letter 0x40 below it. 0: neither.
char introducer(std::string_view text) {
  if (starts_with_c1(text)) return static_cast<char>(text[1] - 0x40);
  return text[0] == kEscape && text.size() > 1 ? text[1] : '\0';
}

// The length of the sequence at the start of `text`; 0: no such.
std::size_t sequence_length(std::string_view text) {
  const char kind = introducer(text);
  if (kind == '[') return control_sequence_end(text, 2);
  constexpr std::string_view kControlStrings = "]PX^_";
  if (kind != '\0' && kControlStrings.find(kind) != std::string_view::npos)
    return control_string_end(text, 2);
  if (text[0] != kEscape) return 0;
  return after_final(text, skip(text, 1, 0x20, 0x2f), 0x30);
}

// Select Graphic Rendition, without private parameters.
bool is_colour(std::string_view sequence) {
  if (introducer(sequence) != '[' || sequence.back() != 'm') return false;
  const std::string_view parameters = sequence.substr(2, sequence.size() - 3);
  return std::ranges::all_of(parameters,
                             [](char c) { return is_between(c, '0', ';'); });
}

}  // namespace

std::string safe_for_terminal(std::string_view line) {
  std::string safe;
  bool coloured = false;
  while (!line.empty()) {
    std::size_t length = sequence_length(line);
    if (length == 0) {
      length = control_length(line);
      safe += length > 0 ? '?' : line[0];
      length = std::max<std::size_t>(length, 1);
    } else if (is_colour(line.substr(0, length))) {
      coloured = true;
      safe += "\033[";
      safe += line.substr(2, length - 2);
    }
    line.remove_prefix(length);
  }
  if (coloured) safe += "\033[0m";
  return safe;
}

}  // namespace lockstep
