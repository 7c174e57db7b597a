// Draws a training run from its progress records, between the lines that
// workers print.
//
// On a terminal the last line is a bar. The display erases it before other
// output and draws it again afterwards, so no line is torn. Elsewhere it prints
// a plain line every few seconds. It returns bytes; the caller writes them.
//
// Threads: one thread at a time.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "src/base/progress_record.h"
#include "src/launch/output/terminal_style.h"

namespace lockstep {

class ProgressDisplay {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // The least time between two plain lines, and between two drawings of the
  // bar.
  static constexpr std::chrono::seconds kPlainInterval{3};
  static constexpr std::chrono::milliseconds kBarInterval{50};

  explicit ProgressDisplay(const TerminalStyle& style) : style_(style) {}

  void add(const ProgressRecord& record, TimePoint now);

  // Adds permanent output. It should end with a newline; otherwise the bar
  // follows on its last line.
  void print(std::string_view text) { text_ += text; }

  // Sets the terminal's new width.
  void resize(int columns);

  // The bytes that bring the terminal up to date; often empty.
  std::string draw(TimePoint now);

  // When to call draw() again without new records, because it delayed a change
  // of the bar that came too soon after another.
  Deadline due() const;

  // Like draw(), but removes the bar, which returns with the next step.
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
  std::string text_;                // to print above the bar
  std::optional<StepRecord> step_;  // shown by the bar
  std::string drawn_;               // the bar on the terminal, or ""
  TimePoint drawn_at_;
  std::optional<TimePoint> last_plain_line_;
  bool has_table_header_ = false;
};

}  // namespace lockstep
