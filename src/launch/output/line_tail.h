// The last lines that a worker wrote, for the failure report.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace lockstep {

class LineTail {
 public:
  static constexpr std::size_t kLines = 30;
  static constexpr std::size_t kLineBytes = 500;

  // Keeps the first kLineBytes of `line`; drops the oldest line.
  void add(std::string_view line) {
    if (lines_.size() == kLines) lines_.pop_front();
    lines_.emplace_back(line.substr(0, kLineBytes));
  }

  // Oldest first.
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace lockstep
