#include "src/base/printable.h"

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

constexpr std::string_view kCut = "...";

// The number of bytes that a character with this first byte has; 0 if no
// character begins with it.
std::size_t length_of_character(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  if (first >= 0xf0 && first < 0xf5) return 4;
  return 0;
}

// The length of the valid character with which `text`, not empty, begins; 0
// where it begins with none.
std::size_t valid_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t length = length_of_character(first);
  if (length == 0 || length > text.size()) return 0;
  if (length == 1) return 1;
  if (!std::ranges::all_of(text.substr(1, length - 1), continues_character))
    return 0;
  // The second byte excludes overlong forms, surrogates and numbers above
  // U+10FFFF: table 3-7 of the Unicode Standard.
  const auto second = static_cast<unsigned char>(text[1]);
  if (first == 0xe0) return second < 0xa0 ? 0 : length;
  if (first == 0xed) return second >= 0xa0 ? 0 : length;
  if (first == 0xf0) return second < 0x90 ? 0 : length;
  if (first == 0xf4) return second >= 0x90 ? 0 : length;
  return length;
}

// The same; 0 for control characters too.
std::size_t visible_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t length = valid_character(text);
  if (length == 1 && (first < 0x20 || first == 0x7f)) return 0;
  if (length == 2 && first == 0xc2 &&
      static_cast<unsigned char>(text[1]) < 0xa0)
    return 0;
  return length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = visible_character(text);
    if (length == 0)
      shown += '?';
    else
      shown += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return shown;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = valid_character(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::size_t copy_shortened(std::string_view text, std::span<char> room) {
  if (text.size() <= room.size()) {
    std::ranges::copy(text, room.begin());
    return text.size();
  }
  const std::size_t kept = room.size() - kCut.size();
  std::size_t head = kept / 2;
  std::size_t tail = text.size() - (kept - head);
  while (head > 0 && continues_character(text[head])) --head;
  while (tail < text.size() && continues_character(text[tail])) ++tail;
  auto end = std::ranges::copy(text.substr(0, head), room.begin()).out;
  end = std::ranges::copy(kCut, end).out;
  end = std::ranges::copy(text.substr(tail), end).out;
  return static_cast<std::size_t>(end - room.begin());
}

}  // namespace lockstep
