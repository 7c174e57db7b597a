// The launcher's output, a terminal or a file: workers' lines, the launcher's
// lines and the progress display, none torn by another.
//
// Threads: one thread at a time.
// Errors:  none thrown; error() says why writing has stopped for good.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/progress_record.h"
#include "src/base/settings.h"
#include "src/launch/output/output_queue.h"
#include "src/launch/output/progress_display.h"
#include "src/net/poll_set.h"

namespace lockstep {

enum class OutputStream { kOut, kErr };

class Screen {
 public:
  // Writes to the descriptors `out` and `err`, which are borrowed. `lookup`
  // reads the variables that describe the terminal. `listener`, if given,
  // receives every record that is shown.
  Screen(int out, int err, const EnvironmentLookup& lookup,
         std::function<void(const ProgressRecord&)> listener = {});

  // Prints a line (without its newline) of a worker or of the launcher.
  void print_line(OutputStream stream, std::string_view line);

  // The number of printed lines, including progress records.
  std::int64_t lines() const { return lines_; }
  // Whether both streams lead to one place.
  bool is_one_place() const { return same_target_; }

  // Passes bytes unchanged, for a worker that has the screen to itself.
  void print_bytes(OutputStream stream, std::string_view bytes);

  void show(const ProgressRecord& record);

  // Removes the bar, which returns with the next step.
  void settle();

  // The size of the terminal that `stream` writes to; empty if it is not one.
  std::optional<winsize> window(OutputStream stream) const;

  // Call it when the terminal's size has changed.
  void resize();

  // Writes the due output that the descriptors accept now.
  void draw();

  // When draw() has work without new input.
  Deadline due() const;

  // Makes draw()'s writing continue when the descriptors have room.
  void watch(PollSet& set);

  // Whether so much is unwritten that callers should add no more for now.
  bool full() const { return out_.full() || err_.full(); }
  // Whether all output is written.
  bool drained() const { return out_.empty() && err_.empty(); }
  // Why writing has stopped for good, as an errno value, or 0.
  int error() const { return out_.error() != 0 ? out_.error() : err_.error(); }

 private:
  // The target of one stream's bytes, and whether they begin a line there.
  struct Place {
    OutputQueue* queue;  // null: the display
    bool at_line_start = true;
  };

  Place& place_of(OutputStream stream);
  void put(Place& place, std::string_view bytes);

  int out_descriptor_;
  int err_descriptor_;
  TerminalStyle out_style_;
  TerminalStyle err_style_;
  std::function<void(const ProgressRecord&)> listener_;
  ProgressDisplay display_;
  OutputQueue out_;
  OutputQueue err_;
  Place out_place_{.queue = nullptr};
  Place err_place_{.queue = &err_};
  bool same_target_;
  std::int64_t lines_ = 0;
};

}  // namespace lockstep
