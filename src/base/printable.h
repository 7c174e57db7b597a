// Text of a caller's making, such as the name of a call, in messages: without
// bytes that would move a terminal's cursor or break a line, and not too long.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// Whether the byte continues a character of UTF-8 that an earlier byte began.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// `text` with a '?' in the place of each control character (below 0x20, 0x7f,
// U+0080 to U+009F) and of each byte that is not part of valid UTF-8.
std::string printable(std::string_view text);

// Whether `text` is valid UTF-8; control characters are.
bool is_utf8(std::string_view text);

// Copies `text` into `room`, which has at least 16 bytes. Of a longer text it
// keeps the beginning and the end, where a file's name and a line's number are,
// with "..." between them, and splits no character of UTF-8. Returns the number
// of bytes; adds no zero.
std::size_t copy_shortened(std::string_view text, std::span<char> room);

}  // namespace lockstep
