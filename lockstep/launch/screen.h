// The terminal, or whatever stands in its place, as the launcher owns it:
// workers' lines, its own, and the progress display, none torn by another.
//
// Threads: one thread at a time.
// Errors:  none are thrown; error() says that nobody reads any more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/progress_record.h"
#include "lockstep/base/settings.h"
#include "lockstep/launch/output_queue.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/progress_display.h"

namespace lockstep {

enum class OutputStream { kOut, kErr };

class Screen {
 public:
  // Writes to the descriptors `out` and `err`, which are lent. `lookup` tells
  // what the terminal can do. `listener` is told of every record that is shown,
  // if there is one.
  Screen(int out, int err, const EnvironmentLookup& lookup,
         std::function<void(const ProgressRecord&)> listener = {});

  // A line (without its newline) of a worker or of our own.
  void print_line(OutputStream stream, std::string_view line);

  // How many lines have been printed, progress records included.
  std::int64_t lines() const { return lines_; }
  // Whether both streams lead to one place.
  bool is_one_place() const { return same_target_; }

  // Bytes as they are, for a worker that has the screen to itself.
  void print_bytes(OutputStream stream, std::string_view bytes);

  void show(const ProgressRecord& record);

  // Takes the bar off; it comes back with the next step.
  void settle();

  // The size of the terminal that `stream` goes to, if it is one.
  std::optional<winsize> window(OutputStream stream) const;

  // To be called when the terminal's size has changed.
  void resize();

  // Writes what is due and can be written at once.
  void draw();

  // When draw() has something to do though nothing new has come.
  Deadline due() const;

  // Has draw()'s writing go on when there is room for it.
  void watch(PollSet& set);

  // Whether there is so much to write that no more should be added for now.
  bool full() const { return out_.full() || err_.full(); }
  // Whether all has been written.
  bool drained() const { return out_.empty() && err_.empty(); }
  // Why nothing can be written any more, as an errno value, or 0.
  int error() const { return out_.error() != 0 ? out_.error() : err_.error(); }

 private:
  // Where bytes for one stream go, and whether they begin a line there.
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
