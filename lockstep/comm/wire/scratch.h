// Memory that one operation after the other uses.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace lockstep {

class Scratch {
 public:
  // `bytes` bytes, aligned for any element, until the next reset().
  std::byte* take(std::size_t bytes);

  // Everything that was taken is free again. More than a few MiB are given
  // back.
  void reset();

 private:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  static constexpr std::size_t kKeptBytes = std::size_t{32} << 20;

  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  std::size_t current_ = 0;  // the block that is being used up
  std::size_t used_ = 0;     // of it
};

}  // namespace lockstep
