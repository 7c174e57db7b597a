#include "src/launch/output/line_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/report_text.h"

namespace lockstep {

LineFolder::LineFolder(int ranks, LineSink sink)
    : ranks_(static_cast<std::size_t>(ranks)), sink_(std::move(sink)) {}

void LineFolder::add(OutputStream stream, int rank, std::string_view line,
                     TimePoint now) {
  waiting_[rank].push_back({stream, std::string(line), now + kHold});
  ++count_;
  release(now);
}

void LineFolder::release(TimePoint now) {
  while (count_ > 0 && must_go(now)) pass_on(next(now));
}

Deadline LineFolder::due() const {
  Deadline due = Deadline::never();
  for (const auto& [rank, lines] : waiting_)
    due = std::min(due, Deadline(lines.front().until));
  return due;
}

// Every rank has printed the line that comes next, or one has waited.
bool LineFolder::must_go(TimePoint now) const {
  const Line& first = waiting_.begin()->second.front();
  return count_ > kMostLines || due().when() <= now ||
         (waiting_.size() == ranks_ &&
          std::ranges::all_of(waiting_, [&](const auto& each) {
            return each.second.front().is_same_as(first);
          }));
}

// Whether a rank has printed `line` after others that still wait, so that it
// can be folded once they are shown.
bool LineFolder::comes_later_elsewhere(const Line& line) const {
  return std::ranges::any_of(waiting_, [&](const auto& each) {
    const auto& lines = each.second;
    return !lines.front().is_same_as(line) &&
           std::ranges::any_of(lines, [&](const Line& other) {
             return other.is_same_as(line);
           });
  });
}

// A line whose time is over, if there is one, so that others wait on for ranks
// that are about to print them.
const LineFolder::Line& LineFolder::next(TimePoint now) const {
  for (const bool any : {false, true})
    for (const auto& [rank, lines] : waiting_)
      if ((any || lines.front().until <= now) &&
          !comes_later_elsewhere(lines.front()))
        return lines.front();
  return waiting_.begin()->second.front();  // they printed in different orders
}

void LineFolder::pass_on(const Line& line) {
  const Line shown = line;
  std::vector<int> ranks;
  for (auto& [rank, lines] : waiting_)
    if (lines.front().is_same_as(shown)) {
      ranks.push_back(rank);
      lines.pop_front();
      --count_;
    }
  std::erase_if(waiting_, [](const auto& each) { return each.second.empty(); });
  sink_(shown.stream,
        fmt::format("[rank{} {}] {}", ranks.size() == 1 ? "" : "s",
                    ranges_in(ranks), shown.text));
}

}  // namespace lockstep
