#include "src/launch/output/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/base/report_text.h"

namespace lockstep {
namespace {

constexpr int kWidestBar = 30;
constexpr int kNarrowestBar = 8;
constexpr std::string_view kDone = "\033[36m";
constexpr std::string_view kToDo = "\033[90m";
constexpr std::string_view kPlain = "\033[0m";

// The bar's three kinds of characters.
struct BarParts {
  std::string_view done, head, to_do;
};

BarParts bar_parts(const TerminalStyle& style) {
  if (!style.utf8) return {"=", ">", "-"};
  return {"━", "╸", style.colour ? "━" : "─"};
}

std::string repeat(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string bar(double share, int width, const TerminalStyle& style) {
  const BarParts parts = bar_parts(style);
  const double exact = std::clamp(share, 0.0, 1.0) * width;
  const int done = static_cast<int>(std::lround(exact));
  const bool head = done < width;
  std::string text;
  if (style.colour) text += kDone;
  text += repeat(parts.done, done);
  if (head) text += parts.head;
  if (style.colour) text += kToDo;
  text += repeat(parts.to_do, head ? width - done - 1 : 0);
  if (style.colour) text += kPlain;
  return text;
}

std::string rate(std::optional<double> images_per_second) {
  if (!images_per_second || !std::isfinite(*images_per_second)) return "-";
  return with_thousands(std::llround(std::clamp(*images_per_second, 0., 1e15)));
}

// The numbers of a step, by descending importance.
std::vector<std::string> step_fields(const StepRecord& record) {
  const std::string steps = std::to_string(record.steps);
  return {fmt::format("{:>{}}/{}", record.step, steps.size(), steps),
          fmt::format("loss {:.3f}", record.loss),
          fmt::format("{} images/s", rate(record.images_per_second)),
          fmt::format("{} left", clock_text(record.seconds_left))};
}

std::string epoch_field(const StepRecord& record) {
  return fmt::format("epoch {}/{}", record.epoch, record.epochs);
}

// Fields after `line`, from the left, as long as there is room.
std::string fields_that_fit(std::string line, const StepRecord& record,
                            int columns) {
  const auto room = static_cast<std::size_t>(columns);
  if (line.size() > room) line.resize(room);
  for (const std::string& field : step_fields(record)) {
    if (line.size() + 2 + field.size() > room) break;
    line += "  " + field;
  }
  return line;
}

std::string accuracy(std::optional<double> share) {
  return share ? percent(*share, 1) : "-";
}

std::string seconds_text(double seconds) {
  return seconds < 99.95 ? fmt::format("{:.1f} s", seconds)
                         : clock_text(seconds);
}

std::string_view dot(const TerminalStyle& style) {
  return style.utf8 ? "·" : "|";
}

std::string count(std::int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", with_thousands(number), what,
                     number == 1 ? "" : "s");
}

// The first line follows `label`, the others stand below it.
void add_labelled(std::vector<std::string>& lines, std::string_view label,
                  const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const bool is_first = &text == texts.data();
    lines.push_back(
        (is_first ? std::string(label) : std::string(label.size(), ' ')) +
        text);
  }
}

}  // namespace

std::vector<std::string> start_lines(const StartRecord& record,
                                     const TerminalStyle& style) {
  const std::string_view by = dot(style);
  std::string first =
      fmt::format("Lockstep {} {} {} on {} {} {}", record.version, by,
                  count(record.ranks, "rank"),
                  record.hosts == 1 ? "this host" : count(record.hosts, "host"),
                  by, record.backend);
  if (!record.libtorch_version.empty())
    first += fmt::format(" {} LibTorch {}", by, record.libtorch_version);
  std::vector<std::string> lines{
      first, fmt::format("{} {} + {} images {} {}, {} {} global batch {}, {} "
                         "per rank",
                         record.dataset, with_thousands(record.train_images),
                         with_thousands(record.test_images), by, record.model,
                         count(record.parameters, "parameter"), by,
                         with_thousands(record.global_batch),
                         with_thousands(record.batch_per_rank))};
  add_labelled(lines, "note    ", record.notes);
  return lines;
}

std::string bar_line(const StepRecord& record, const TerminalStyle& style) {
  // A terminal may wrap when its last column is written.
  const int columns = std::max(style.columns - 1, 0);
  const std::string left = epoch_field(record);
  std::string right;
  for (const std::string& field : step_fields(record)) right += "  " + field;
  const int bar_width =
      columns - static_cast<int>(left.size() + right.size()) - 2;
  if (bar_width < kNarrowestBar) return fields_that_fit(left, record, columns);
  const double share = record.steps > 0 ? static_cast<double>(record.step) /
                                              static_cast<double>(record.steps)
                                        : 0.0;
  return left + "  " + bar(share, std::min(bar_width, kWidestBar), style) +
         right;
}

std::string step_line(const StepRecord& record) {
  std::string line = epoch_field(record);
  for (const std::string& field : step_fields(record)) line += "  " + field;
  return line;
}

std::string epoch_table_header() {
  return "epoch   train loss   train acc   test acc   images/s     time";
}

std::string epoch_table_row(const EpochRecord& record) {
  return fmt::format(
      "{:>5}   {:>10.4f}   {:>9}   {:>8}   {:>8}   {:>6}", record.epoch,
      record.train_loss, accuracy(record.train_accuracy),
      accuracy(record.test_accuracy), rate(record.images_per_second),
      record.seconds ? seconds_text(*record.seconds) : "-");
}

std::vector<std::string> end_lines(const EndRecord& record,
                                   const TerminalStyle& style) {
  std::string first =
      fmt::format("trained in {}", seconds_text(record.seconds));
  if (record.test_accuracy)
    first += fmt::format(" {} test accuracy {}", dot(style),
                         accuracy(record.test_accuracy));
  std::vector<std::string> lines{first};
  if (!record.model_path.empty())
    lines.push_back("model   " + record.model_path);
  add_labelled(lines, "note    ", record.notes);
  add_labelled(lines, "next    ", record.hints);
  return lines;
}

std::string clock_text(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0 && seconds < kLongest)) return "-:--";
  const std::int64_t whole = std::llround(seconds);
  const std::int64_t hours = whole / 3600;
  const std::int64_t minutes = whole / 60 % 60;
  if (hours == 0) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
}

}  // namespace lockstep
