// Which blocks of a long range of memory are in use: a caching allocator's
// bookkeeping, without the memory.
//
// A block that is given back is kept by its size and handed out again at once:
// a training step asks for the same sizes as the one before, and gets the same
// memory, warm. Sizes are rounded up to eight classes for each power of two.
// Kept blocks are joined with their neighbours before memory is used that was
// never touched, so that a program whose sizes change does not grow without
// end; release() gives their memory back to the kernel.
//
// Taking a kept block, and giving one back, costs a few dozen nanoseconds; the
// rest is logarithmic in the number of blocks.
//
// Threads: one at a time.
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
  // Of blocks' offsets and sizes.
  static constexpr std::size_t kUnit = 64;

  // The range [0, bytes), of which nothing was ever touched.
  explicit BlockMap(std::size_t bytes);

  // The offset of a block of at least `bytes` bytes; nothing when there is no
  // room.
  std::optional<std::size_t> take(std::size_t bytes);

  // What the block at `offset`, which must be in use, occupies.
  std::size_t size_of(std::size_t offset) const;

  // Ends the block at `offset`, which must be in use.
  void give_back(std::size_t offset);

  // The same, and its memory is never handed out again. Returns its size.
  std::size_t retire(std::size_t offset);

  // In blocks that are in use; and in free ones that have memory behind them.
  std::size_t bytes_used() const { return used_bytes_; }
  std::size_t bytes_kept() const { return in_kept_ + touched_.bytes(); }

  // Calls `forget(offset, bytes)` for free ranges, the largest first and of the
  // last only as much as must go, until at most `most` bytes are kept.
  void release(std::size_t most,
               const std::function<void(std::size_t, std::size_t)>& forget);

  // What a block of this many bytes occupies.
  static std::size_t class_size(std::size_t bytes);

 private:
  // Free memory, no two ranges of which touch.
  class Ranges {
   public:
    void insert(std::size_t offset, std::size_t bytes);
    // The front of the smallest range that is large enough.
    std::optional<std::size_t> take(std::size_t bytes);
    // The largest, as offset and size; there must be one.
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
