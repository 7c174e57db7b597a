// Which blocks of a long range of memory are in use: a caching allocator's
// bookkeeping, without the memory.
//
// A freed block is kept by its size and handed out again at once: a training
// step asks for the same sizes as the previous step and gets the same memory,
// warm. Sizes are rounded up to eight classes for each power of two. The map
// joins kept blocks with their neighbours before it uses untouched memory, so
// that a program whose sizes change does not grow without end; release() gives
// their memory back to the kernel.
//
// Taking a kept block, and giving one back, costs a few dozen nanoseconds; the
// rest is logarithmic in the number of blocks.
//
// Threads: one thread at a time.
// Source:  best fit with deferred coalescing, as surveyed by Wilson et al.,
//          "Dynamic Storage Allocation", 1995.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep {

class BlockMap {
 public:
  // Block offsets and sizes are multiples of it.
  static constexpr std::size_t kUnit = 64;

  // The range [0, bytes), untouched so far.
  explicit BlockMap(std::size_t bytes);

  // The offset of a block of at least `bytes` bytes; empty when the range is
  // full.
  std::optional<std::size_t> take(std::size_t bytes);

  // The bytes that the block at `offset`, which must be in use, occupies.
  std::size_t size_of(std::size_t offset) const;

  // Ends the block at `offset`, which must be in use.
  void give_back(std::size_t offset);

  // The same, except that its memory is never handed out again. Returns its
  // size.
  std::size_t retire(std::size_t offset);

  // Bytes in blocks that are in use, and in free blocks that have memory.
  std::size_t bytes_used() const { return used_bytes_; }
  std::size_t bytes_kept() const { return in_kept_ + touched_.bytes(); }

  // Calls `forget(offset, bytes)` for free ranges, the largest first, until at
  // most `most` bytes are kept; of the last range it forgets only as much as
  // needed.
  void release(std::size_t most,
               const std::function<void(std::size_t, std::size_t)>& forget);

  // The bytes that a block of this size occupies.
  static std::size_t class_size(std::size_t bytes);

 private:
  // Free memory, no two ranges of which touch.
  class Ranges {
   public:
    void insert(std::size_t offset, std::size_t bytes);
    // The front of the smallest range that is large enough.
    std::optional<std::size_t> take(std::size_t bytes);
    // The largest range, as offset and size. Must not be empty.
    std::pair<std::size_t, std::size_t> take_largest();
    bool empty() const { return by_offset_.empty(); }
    std::size_t bytes() const { return bytes_; }

   private:
    void erase(std::map<std::size_t, std::size_t>::iterator range);

    std::map<std::size_t, std::size_t> by_offset_;  // to size
    std::set<std::pair<std::size_t, std::size_t>> by_size_;
    std::size_t bytes_ = 0;
  };

  std::optional<std::size_t> take_kept(std::size_t size);
  std::optional<std::size_t> take_range(std::size_t size);
  void join_kept();

  std::unordered_map<std::size_t, std::size_t> used_;  // offset to size
  std::size_t used_bytes_ = 0;
  // Kept blocks, by their size; newest last.
  std::unordered_map<std::size_t, std::vector<std::size_t>> kept_;
  std::size_t in_kept_ = 0;  // bytes
  Ranges touched_;           // kept blocks that were joined
  Ranges untouched_;         // no memory behind them
};

}  // namespace lockstep
