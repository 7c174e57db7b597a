// A list of buffers, treated as one contiguous range of bytes.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/buffer.h"

namespace lockstep {

// All of `buffers`, or the `part`-th of `parts` equal parts of each of them.
struct BufferSpan {
  std::span<const Buffer> buffers{};
  std::size_t part = 0;
  std::size_t parts = 1;
};

std::size_t total_bytes(const BufferSpan& run);

// A position within a run, which moves forward.
class BufferCursor {
 public:
  explicit BufferCursor(const BufferSpan& run, std::size_t at = 0) : run_(run) {
    skip_to_next();
    advance(at);
  }

  // The memory at the position, and its contiguous bytes: 0 only at the end of
  // the run.
  std::byte* here() const { return here_; }
  std::size_t left() const { return left_; }

  void advance(std::size_t bytes) {
    while (bytes > 0 && bytes >= left_ && left_ > 0) {
      bytes -= left_;
      ++index_;
      skip_to_next();
    }
    // A buffer of another process has a size, but no address here.
    if (here_ != nullptr) here_ += bytes;
    left_ -= bytes;
  }

 private:
  void skip_to_next() {
    for (left_ = 0; index_ < run_.buffers.size(); ++index_) {
      const Buffer& buffer = run_.buffers[index_];
      left_ = buffer.bytes() / run_.parts;
      here_ = static_cast<std::byte*>(buffer.data);
      if (here_ != nullptr) here_ += run_.part * left_;
      if (left_ > 0) return;
    }
  }

  BufferSpan run_;
  std::size_t index_ = 0;  // the current buffer
  std::byte* here_ = nullptr;
  std::size_t left_ = 0;
};

// Copies `bytes` bytes from one position to another and advances both.
void copy(BufferCursor& from, BufferCursor& to, std::size_t bytes);

// Copies bytes [at, at + to.size()) of the run to `to`.
void copy_from(const BufferSpan& run, std::size_t at, std::span<std::byte> to);

// Copies `from` over bytes [at, at + from.size()) of the run.
void copy_into(const BufferSpan& run, std::size_t at,
               std::span<const std::byte> from);

}  // namespace lockstep
