#include "lockstep/comm/testing/fake_gpu_memory.h"

#include <fmt/format.h>

#include <iterator>
#include <new>
#include <utility>

namespace lockstep {
namespace {

std::uintptr_t place_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

void* FakeMemory::allocate(std::size_t bytes, int device) {
  // At least a byte, so that each has a place of its own.
  std::unique_ptr<std::byte[]> block(new (std::nothrow)
                                         std::byte[bytes == 0 ? 1 : bytes]());
  if (!block) return nullptr;
  void* memory = block.get();
  history_.forget(memory, bytes);
  blocks_[place_of(memory)] = {std::move(block), bytes, device};
  return memory;
}

bool FakeMemory::release(void* memory) {
  const auto found = blocks_.find(place_of(memory));
  if (found == blocks_.end()) return false;
  history_.forget(memory, found->second.size);
  blocks_.erase(found);
  return true;
}

std::size_t FakeMemory::bytes_of(const void* memory) const {
  const auto found = blocks_.find(place_of(memory));
  return found == blocks_.end() ? 0 : found->second.size;
}

void FakeMemory::use(const MemoryUse& use, const MemoryUser& user) {
  std::string wrong = history_.add(use, user);
  if (!wrong.empty()) complain(std::move(wrong));
}

void FakeMemory::check_bounds(const MemoryUse& use, int device,
                              const std::string& who) {
  if (use.bytes == 0) return;
  const std::uintptr_t begin = place_of(use.memory);
  const std::uintptr_t end = begin + use.bytes;
  auto block = blocks_.lower_bound(end);
  if (block == blocks_.begin()) return;
  block = std::prev(block);
  const std::uintptr_t block_end = block->first + block->second.size;
  if (block_end <= begin) return;
  if (begin < block->first || end > block_end)
    complain(fmt::format("{} goes beyond the {} bytes that were allocated", who,
                         block->second.size));
  if (device >= 0 && block->second.device != device)
    complain(fmt::format("{} on device {} is given memory of device {}", who,
                         device, block->second.device));
}

void FakeMemory::complain(std::string violation) {
  violations_.push_back(std::move(violation));
}

}  // namespace lockstep
