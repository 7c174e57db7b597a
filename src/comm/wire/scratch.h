// Memory that successive operations reuse.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace lockstep {

class Scratch {
 public:
  // `bytes` bytes, aligned for any element, until the next reset().
  std::byte* take(std::size_t bytes);

  // Frees everything that was taken. Returns more than a few MiB to the system.
  void reset();

 private:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  static constexpr std::size_t kKeptBytes = std::size_t{32} << 20;

  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  std::size_t current_ = 0;  // the block in use
  std::size_t used_ = 0;     // bytes of it
};

}  // namespace lockstep
