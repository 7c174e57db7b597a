// The first line of a text, such as that of an error of several lines.
//
// Threads: any thread.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace lockstep
