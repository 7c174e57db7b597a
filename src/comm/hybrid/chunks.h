// An operation's elements, split for two levels: a chunk has blocks (one per
// rank of a host), a block has pieces (one per host).
//
// All but the last chunk are of one size, and so are all their pieces; the last
// holds the rest, in its first pieces. A chunk in contiguous memory is used in
// place; any other gets a place in our memory, which the chunk kPlaces later
// uses again.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "src/comm/operation/buffer_span.h"

namespace lockstep {

class Chunks {
 public:
  static constexpr std::size_t kPlaces = 6;

  // `places(bytes)` allocates memory for the chunks that need it.
  struct Shape {
    std::size_t blocks = 1;  // in a chunk
    std::size_t pieces = 1;  // in a block
  };
  using Places = std::function<std::byte*(std::size_t bytes)>;
  Chunks(std::span<const Buffer> buffers, const Shape& shape,
         const Places& places);

  std::size_t size() const { return memory_.size(); }
  std::size_t piece_bytes() const { return piece_bytes_; }

  // Parts of chunk `c`; empty beyond the last element.
  Buffer whole(std::size_t c) const { return part(c, 0, chunk_bytes()); }
  Buffer block(std::size_t c, std::size_t b) const {
    return part(c, b * block_bytes(), block_bytes());
  }
  Buffer piece(std::size_t c, std::size_t b, std::size_t p) const {
    return part(c, b * block_bytes() + p * piece_bytes_, piece_bytes_);
  }

  // Copies between the caller's buffers and the chunk's place, if it has one.
  void fetch(std::size_t c) const;
  void put_back(std::size_t c) const;

 private:
  std::size_t block_bytes() const { return piece_bytes_ * shape_.pieces; }
  std::size_t chunk_bytes() const { return block_bytes() * shape_.blocks; }
  std::size_t bytes_of(std::size_t c) const;
  Buffer part(std::size_t c, std::size_t at, std::size_t bytes) const;

  struct Memory {
    std::byte* data = nullptr;
    bool is_ours = false;
  };

  const BufferSpan run_;
  const Shape shape_;
  const DataType type_;
  const std::size_t bytes_;
  std::size_t piece_bytes_ = 0;
  std::vector<Memory> memory_;  // of each chunk
};

}  // namespace lockstep
