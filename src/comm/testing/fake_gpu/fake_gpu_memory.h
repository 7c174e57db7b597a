// A fake GPU's memory: the allocations, their uses, and all violations.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu_race.h"

namespace lockstep {

class FakeMemory {
 public:
  std::size_t new_actor() { return actors_++; }

  // Null if memory has run out.
  void* allocate(std::size_t bytes, int device);
  // Returns whether `memory` was allocated. The caller reports a write to it
  // before.
  bool release(void* memory);
  // 0 if `memory` was not allocated.
  std::size_t bytes_of(const void* memory) const;
  std::size_t allocations() const { return blocks_.size(); }

  void use(const MemoryUse& use, const StreamAccess& user);
  void forget(const void* memory, std::size_t bytes) {
    history_.forget(memory, bytes);
    forget_calls(memory, bytes);
  }

  // Notes uses by communicators' calls, which only have to be over before the
  // memory is unregistered.
  void call_uses(const MemoryUse& use, const StreamAccess& user);
  void end_calls(const MemoryUse& all, const StreamAccess& user);
  void forget_calls(const void* memory, std::size_t bytes) {
    calls_.forget(memory, bytes);
  }

  // Notes a violation if `use` leaves its block, lies on another device (unless
  // `device` is -1), or lies in a released block.
  void check_bounds(const MemoryUse& use, int device, const std::string& who);

  void complain(std::string violation);
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  // As cudaMalloc() aligns memory: kernels of matrix products that take other
  // ways through unaligned memory give other bits.
  static constexpr std::align_val_t kAlignment{256};
  struct Free {
    void operator()(std::byte* bytes) const {
      ::operator delete[](bytes, kAlignment);
    }
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> bytes;
    std::size_t size = 0;
    int device = 0;
  };
  using Blocks = std::map<std::uintptr_t, Block>;
  // The last block of `blocks` that shares a byte with `use`.
  static Blocks::const_iterator block_under(const MemoryUse& use,
                                            const Blocks& blocks);
  void keep_released(Blocks::node_type block);

  std::size_t actors_ = 0;
  Blocks blocks_;
  // The latest released blocks, which are not reused while they are here.
  Blocks released_;
  std::deque<std::uintptr_t> release_order_;
  std::size_t released_bytes_ = 0;
  MemoryHistory history_;
  MemoryHistory calls_;
  std::vector<std::string> violations_;
};

}  // namespace lockstep
