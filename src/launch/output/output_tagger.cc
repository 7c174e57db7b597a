#include "src/launch/output/output_tagger.h"

#include <algorithm>
#include <utility>

#include "src/base/printable.h"

namespace lockstep {
namespace {

// The cut at or slightly before `place` that splits no UTF-8 character; `place`
// itself in text that is not UTF-8.
std::size_t cut_place(std::string_view text, std::size_t place) {
  constexpr std::size_t kLongestCharacter = 4;
  for (std::size_t back = 0; back < kLongestCharacter; ++back)
    if (!continues_character(text[place - back])) return place - back;
  return place;
}

// Drops overwritten text. A carriage return at the end stays, because a newline
// or other text may follow.
void drop_overwritten(std::string& text) {
  const std::size_t last = text.find_last_not_of('\r');
  if (last == std::string::npos) return text.clear();
  if (last + 1 < text.size()) text.resize(last + 2);
  const std::size_t before = text.rfind('\r', last);
  if (before != std::string::npos) text.erase(0, before + 1);
}

}  // namespace

OutputTagger::OutputTagger(std::string tag, LineSink sink,
                           std::size_t line_bytes)
    : tag_(std::move(tag)), sink_(std::move(sink)), line_bytes_(line_bytes) {}

void OutputTagger::add(std::string_view bytes) {
  for (;;) {
    const std::size_t newline = bytes.find('\n');
    take(bytes.substr(0, newline));
    if (newline == std::string_view::npos) return;
    // The newline after a line that was cut at its end does not start a new
    // line.
    if (!partial_.empty() || !cut_) emit();
    cut_ = false;
    bytes.remove_prefix(newline + 1);
  }
}

void OutputTagger::take(std::string_view part) {
  while (!part.empty()) {
    // One byte more than a line, so that cut() sees whether a character ends
    // there.
    const std::size_t room = line_bytes_ + 1 - partial_.size();
    const std::size_t count = std::min(room, part.size());
    partial_ += part.substr(0, count);
    part.remove_prefix(count);
    if (partial_.size() > line_bytes_) cut();
  }
}

void OutputTagger::cut() {
  drop_overwritten(partial_);
  if (partial_.size() <= line_bytes_) return;
  std::string rest = partial_.substr(cut_place(partial_, line_bytes_));
  partial_.resize(partial_.size() - rest.size());
  emit();
  partial_ = std::move(rest);
  cut_ = true;
}

void OutputTagger::emit() {
  drop_overwritten(partial_);
  if (partial_.ends_with('\r')) partial_.pop_back();
  sink_(tag_ + partial_);
  partial_.clear();
}

void OutputTagger::break_line() {
  if (partial_.empty()) return;
  emit();
  cut_ = true;
}

void OutputTagger::finish() {
  break_line();
  cut_ = false;
}

std::string_view OutputTagger::overwritten() const {
  const std::string_view text = partial_;
  const std::size_t last = text.find_last_not_of('\r', text.rfind('\r'));
  if (text.rfind('\r') == text.npos || last == text.npos) return {};
  const std::size_t before = text.rfind('\r', last);
  const std::size_t begin = before == text.npos ? 0 : before + 1;
  return text.substr(begin, last + 1 - begin);
}

}  // namespace lockstep
