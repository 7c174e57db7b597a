// Splits a worker's output into lines and puts its tag before each.
//
// Memory stays bounded for any input: a line that is too long continues in the
// next one. Of a line that carriage returns overwrite, as progress bars do, the
// tagger keeps what a terminal would show.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

class OutputTagger {
 public:
  static constexpr std::size_t kMaxLineBytes = 8192;

  // Receives one line: tag and text, without a newline. Worker::show_line takes
  // the tag off again, for the failure report and the folder of equal lines.
  using LineSink = std::function<void(std::string_view line)>;

  // `tag` comes before every line: "[rank 1] ". A line's text has at most
  // `line_bytes` bytes.
  OutputTagger(std::string tag, LineSink sink,
               std::size_t line_bytes = kMaxLineBytes);

  // Passes the lines that `bytes` completes to the sink; keeps the rest.
  void add(std::string_view bytes);

  // Passes on a line that has begun; its rest becomes a line of its own.
  void break_line();

  // Passes on a last line without a newline.
  void finish();

  // What a terminal last showed of a line that has begun, before a carriage
  // return; empty without one. The text after that return may be incomplete.
  std::string_view overwritten() const;

 private:
  void take(std::string_view part);
  void cut();
  void emit();

  std::string tag_;
  LineSink sink_;
  std::size_t line_bytes_;
  std::string partial_;
  bool cut_ = false;  // whether partial_ continues a line that was cut
};

}  // namespace lockstep
