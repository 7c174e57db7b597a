#include "src/launch/output/progress_display.h"

#include <utility>

#include "src/launch/output/progress_text.h"

namespace lockstep {
namespace {

constexpr std::string_view kEraseLine = "\r\033[K";

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

void ProgressDisplay::add(const ProgressRecord& record, TimePoint now) {
  std::visit(Overloaded{
                 [&](const StartRecord& start) { begin(start); },
                 [&](const StepRecord& next) { step(next, now); },
                 [&](const EpochRecord& epoch) { end_epoch(epoch); },
                 [&](const EndRecord& last) { end(last); },
             },
             record);
}

void ProgressDisplay::begin(const StartRecord& record) {
  for (const std::string& line : start_lines(record, style_)) print_line(line);
  print_line("");
}

void ProgressDisplay::step(const StepRecord& record, TimePoint now) {
  if (style_.moving) {
    step_ = record;
    return;
  }
  if (last_plain_line_ && now - *last_plain_line_ < kPlainInterval) return;
  last_plain_line_ = now;
  print_line(step_line(record));
}

void ProgressDisplay::end_epoch(const EpochRecord& record) {
  if (!std::exchange(has_table_header_, true)) print_line(epoch_table_header());
  print_line(epoch_table_row(record));
}

void ProgressDisplay::end(const EndRecord& record) {
  step_.reset();
  print_line("");
  for (const std::string& line : end_lines(record, style_)) print_line(line);
}

void ProgressDisplay::print_line(std::string_view line) {
  text_ += line;
  text_ += '\n';
}

void ProgressDisplay::resize(int columns) { style_.columns = columns; }

std::string ProgressDisplay::take_text() {
  std::string bytes;
  if (!drawn_.empty()) bytes += kEraseLine;
  drawn_.clear();
  return bytes + std::exchange(text_, "");
}

std::string ProgressDisplay::bar() const {
  return step_ ? bar_line(*step_, style_) : "";
}

std::string ProgressDisplay::draw(TimePoint now) {
  const std::string line = bar();
  const bool early = !drawn_.empty() && now - drawn_at_ < kBarInterval;
  if (text_.empty() && (line == drawn_ || early)) return "";
  std::string bytes = take_text() + line;
  drawn_ = line;
  drawn_at_ = now;
  return bytes;
}

Deadline ProgressDisplay::due() const {
  if (drawn_.empty() || bar() == drawn_) return Deadline::never();
  return Deadline(drawn_at_ + kBarInterval);
}

std::string ProgressDisplay::settle() {
  step_.reset();
  return take_text();
}

}  // namespace lockstep
