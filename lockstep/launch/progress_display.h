// Draws a training run from its progress records, in between the lines that
// workers print.
//
// Where lines can move, the last line is a bar that is erased before anything
// else is printed and drawn again after it, so that no line is ever torn.
// Elsewhere a plain line comes every few seconds. What it draws is returned as
// bytes; the caller writes them.
//
// Threads: one thread at a time.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/progress_record.h"
#include "lockstep/launch/terminal_style.h"

namespace lockstep {

class ProgressDisplay {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Least time between two plain lines, and between two drawings of the bar.
  static constexpr std::chrono::seconds kPlainInterval{3};
  static constexpr std::chrono::milliseconds kBarInterval{50};

  explicit ProgressDisplay(const TerminalStyle& style) : style_(style) {}

  void add(const ProgressRecord& record, TimePoint now);

  // Adds output that stays. It should end with a newline: the bar would follow
  // on its last line.
  void print(std::string_view text) { text_ += text; }

  // The terminal has another width now.
  void resize(int columns);

  // The bytes that bring the terminal up to date. Often none.
  std::string draw(TimePoint now);

  // When draw() should be called again though nothing new has come: a change of
  // the bar was held back for being too soon after another.
  Deadline due() const;

  // The same as draw(), but leaves no bar; it comes back with the next step.
  std::string settle();

 private:
  std::string bar() const;
  void begin(const StartRecord& record);
  void step(const StepRecord& record, TimePoint now);
  void end_epoch(const EpochRecord& record);
  void end(const EndRecord& record);
  void print_line(std::string_view line);
  std::string take_text();

  TerminalStyle style_;
  std::string text_;                // to be printed above the bar
  std::optional<StepRecord> step_;  // what the bar shows
  std::string drawn_;               // the bar on the terminal, or ""
  TimePoint drawn_at_;
  std::optional<TimePoint> last_plain_line_;
  bool has_table_header_ = false;
};

}  // namespace lockstep
