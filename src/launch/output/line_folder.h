// Shows a line that several ranks print at nearly the same time once:
// "[ranks 0-7] loading the data".
//
// A line waits until every rank has printed it, at most kHold; then the waiting
// lines are merged as a diff would merge them: a rank's lines keep their order,
// over both streams. Cost: up to kHold between a line and its appearance, and a
// comparison with each waiting line of the other ranks.
//
// Threads: one thread at a time.
// Errors:  none thrown.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "src/launch/output/screen.h"

namespace lockstep {

class LineFolder {
 public:
  using TimePoint = Deadline::Clock::time_point;

  static constexpr std::chrono::milliseconds kHold{100};
  // More lines do not wait.
  static constexpr std::size_t kMostLines = 256;

  // Receives a line with the tag of its ranks.
  using LineSink = std::function<void(OutputStream, const std::string& line)>;

  // Lines come from `ranks` ranks.
  LineFolder(int ranks, LineSink sink);

  // Takes a line, without a tag, that `rank` printed.
  void add(OutputStream stream, int rank, std::string_view line, TimePoint now);

  // Passes on the lines that have waited long enough.
  void release(TimePoint now);
  // Passes on all lines.
  void release_all() { release(TimePoint::max()); }

  // When release() has work without new lines.
  Deadline due() const;

 private:
  struct Line {
    OutputStream stream;
    std::string text;
    TimePoint until;

    bool is_same_as(const Line& other) const {
      return stream == other.stream && text == other.text;
    }
  };

  bool must_go(TimePoint now) const;
  bool comes_later_elsewhere(const Line& line) const;
  const Line& next(TimePoint now) const;
  void pass_on(const Line& line);

  const std::size_t ranks_;
  const LineSink sink_;
  std::map<int, std::deque<Line>> waiting_;  // by rank; no empty ones
  std::size_t count_ = 0;                    // of all waiting lines
};

}  // namespace lockstep
