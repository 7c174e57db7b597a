// Buffers bytes for a terminal, pipe or file that may not accept them now.
//
// Writing never blocks, so while a reader pauses (`less`, Ctrl-S) the launcher
// still sees a worker die and obeys Ctrl-C. The caller checks full() before it
// adds bytes and stops reading its sources meanwhile: memory stays bounded and
// the pause reaches the workers.
//
// Threads: one thread at a time.
// Errors:  none thrown; error() says why writing has stopped for good.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "src/net/file_descriptor.h"

namespace lockstep {

class OutputQueue {
 public:
  static constexpr std::size_t kEnoughBytes = 256 * 1024;

  // `descriptor` is borrowed and keeps its flags, because other programs may
  // share it.
  explicit OutputQueue(int descriptor);

  void add(std::string_view bytes);

  // Writes as many bytes as the descriptor accepts now.
  void flush();

  bool empty() const { return written_ == bytes_.size(); }
  bool full() const { return bytes_.size() - written_ >= kEnoughBytes; }

  // Why writing failed for good, as an errno value (EPIPE: the reader is gone);
  // the queue then drops all bytes. 0 without an error.
  int error() const { return error_; }

  // Poll it for writing while not empty().
  int descriptor() const { return target_; }

 private:
  bool write_some();

  FileDescriptor own_;  // the same target, reopened as non-blocking
  int target_;
  std::string bytes_;
  std::size_t written_ = 0;
  int error_ = 0;
};

}  // namespace lockstep
