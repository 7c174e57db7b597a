#include "src/launch/output/screen.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "src/launch/output/terminal_text.h"

namespace lockstep {
namespace {

// Whether both are one terminal, pipe or file. They then share a queue, which
// keeps the order and prevents torn lines.
bool lead_to_the_same(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

ProgressDisplay::TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

Screen::Screen(int out, int err, const EnvironmentLookup& lookup,
               std::function<void(const ProgressRecord&)> listener)
    : out_descriptor_(out),
      err_descriptor_(err),
      out_style_(terminal_style(out, lookup)),
      err_style_(terminal_style(err, lookup)),
      listener_(std::move(listener)),
      display_(out_style_),
      out_(out),
      err_(err),
      same_target_(lead_to_the_same(out, err)) {}

Screen::Place& Screen::place_of(OutputStream stream) {
  return stream == OutputStream::kOut || same_target_ ? out_place_ : err_place_;
}

void Screen::put(Place& place, std::string_view bytes) {
  if (bytes.empty()) return;
  place.at_line_start = bytes.back() == '\n';
  lines_ += std::ranges::count(bytes, '\n');
  if (place.queue != nullptr)
    place.queue->add(bytes);
  else
    display_.print(bytes);
}

void Screen::print_line(OutputStream stream, std::string_view line) {
  Place& place = place_of(stream);
  const TerminalStyle& style = &place == &out_place_ ? out_style_ : err_style_;
  if (!place.at_line_start) put(place, "\n");
  put(place, style.moving ? safe_for_terminal(line) : std::string(line));
  put(place, "\n");
}

void Screen::print_bytes(OutputStream stream, std::string_view bytes) {
  put(place_of(stream), bytes);
}

void Screen::show(const ProgressRecord& record) {
  if (!out_place_.at_line_start) put(out_place_, "\n");
  display_.add(record, now());
  ++lines_;
  if (listener_) listener_(record);
}

void Screen::settle() { out_.add(display_.settle()); }

std::optional<winsize> Screen::window(OutputStream stream) const {
  return terminal_window(stream == OutputStream::kOut ? out_descriptor_
                                                      : err_descriptor_);
}

void Screen::resize() { display_.resize(terminal_columns(out_descriptor_)); }

void Screen::draw() {
  if (!out_.full()) out_.add(display_.draw(now()));
  out_.flush();
  err_.flush();
}

Deadline Screen::due() const {
  return out_.full() ? Deadline::never() : display_.due();
}

void Screen::watch(PollSet& set) {
  for (OutputQueue* queue : {&out_, &err_})
    if (!queue->empty())
      set.watch(queue->descriptor(), POLLOUT, [queue] { queue->flush(); });
}

}  // namespace lockstep
