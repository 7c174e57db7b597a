#include "src/comm/testing/fake_gpu/fake_gpu_memory.h"

#include <fmt/format.h>

#include <iterator>
#include <new>
#include <utility>

namespace lockstep {
namespace {

std::uintptr_t place_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

// The bytes of released memory that are kept out of use.
constexpr std::size_t kKeptReleased = std::size_t{64} << 20;

}  // namespace

void* FakeMemory::allocate(std::size_t bytes, int device) {
  // At least a byte, so that each block has its own address.
  std::unique_ptr<std::byte[], Free> block(
      new (kAlignment, std::nothrow) std::byte[bytes == 0 ? 1 : bytes]());
  if (!block) return nullptr;
  void* memory = block.get();
  forget(memory, bytes);
  blocks_[place_of(memory)] = {std::move(block), bytes, device};
  return memory;
}

bool FakeMemory::release(void* memory) {
  const auto found = blocks_.find(place_of(memory));
  if (found == blocks_.end()) return false;
  forget(memory, found->second.size);
  keep_released(blocks_.extract(found));
  return true;
}

void FakeMemory::keep_released(Blocks::node_type block) {
  released_bytes_ += block.mapped().size;
  release_order_.push_back(block.key());
  released_.insert(std::move(block));
  while (released_bytes_ > kKeptReleased) {
    const auto oldest = released_.find(release_order_.front());
    released_bytes_ -= oldest->second.size;
    released_.erase(oldest);
    release_order_.pop_front();
  }
}

std::size_t FakeMemory::bytes_of(const void* memory) const {
  const auto found = blocks_.find(place_of(memory));
  return found == blocks_.end() ? 0 : found->second.size;
}

void FakeMemory::use(const MemoryUse& use, const StreamAccess& user) {
  std::string wrong = history_.add(use, user);
  if (!wrong.empty()) complain(std::move(wrong));
}

// The calls' effects on the elements do not matter: all uses count as reads.
void FakeMemory::call_uses(const MemoryUse& use, const StreamAccess& user) {
  calls_.add({MemoryUse::Kind::kReads, use.memory, use.bytes}, user);
}

void FakeMemory::end_calls(const MemoryUse& all, const StreamAccess& user) {
  std::string wrong = calls_.add(all, user);
  if (!wrong.empty()) complain(std::move(wrong));
}

FakeMemory::Blocks::const_iterator FakeMemory::block_under(
    const MemoryUse& use, const Blocks& blocks) {
  const std::uintptr_t begin = place_of(use.memory);
  auto block = blocks.lower_bound(begin + use.bytes);
  if (block == blocks.begin()) return blocks.end();
  block = std::prev(block);
  return block->first + block->second.size <= begin ? blocks.end() : block;
}

void FakeMemory::check_bounds(const MemoryUse& use, int device,
                              const std::string& who) {
  if (use.bytes == 0) return;
  if (block_under(use, released_) != released_.end())
    complain(who + " is given memory that was released");
  const auto block = block_under(use, blocks_);
  if (block == blocks_.end()) return;
  const std::uintptr_t begin = place_of(use.memory);
  const std::uintptr_t end = begin + use.bytes;
  const std::uintptr_t block_end = block->first + block->second.size;
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
