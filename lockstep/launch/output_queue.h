// Bytes on their way to a terminal, pipe or file that may not take them now.
//
// Writing never blocks, so that a reader who pauses (`less`, Ctrl-S) keeps a
// launcher neither from seeing a worker die nor from obeying Ctrl-C. Who fills
// it asks full() first and stops reading its own sources: memory stays bounded
// and the pause reaches the workers.
//
// Threads: one thread at a time.
// Errors:  none are thrown; error() says why nothing can be written any more.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class OutputQueue {
 public:
  static constexpr std::size_t kEnoughBytes = 256 * 1024;

  // `descriptor` is lent and keeps its flags: it may be shared with other
  // programs.
  explicit OutputQueue(int descriptor);

  void add(std::string_view bytes);

  // Writes what can be written at once.
  void flush();

  bool empty() const { return written_ == bytes_.size(); }
  bool full() const { return bytes_.size() - written_ >= kEnoughBytes; }

  // Why writing failed for good, as an errno value (EPIPE: the reader has
  // gone); everything is dropped from then on. 0 while all is well.
  int error() const { return error_; }

  // To be polled for writing while not empty().
  int descriptor() const { return target_; }

 private:
  bool write_some();

  FileDescriptor own_;  // the same target, opened anew so as not to block
  int target_;
  std::string bytes_;
  std::size_t written_ = 0;
  int error_ = 0;
};

}  // namespace lockstep
