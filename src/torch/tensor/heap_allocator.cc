#include "src/torch/tensor/heap_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "src/base/mutex.h"

namespace lockstep {
namespace {

// Immortal: static tensors are freed when the process ends.
class HeapAllocator final : public c10::Allocator {
 public:
  static HeapAllocator& instance() {
    static HeapAllocator& allocator = *new HeapAllocator;
    return allocator;
  }

  void use(std::shared_ptr<Heap> heap) {
    MutexLock lock(mutex_);
    if (heap.get() == current_.load()) return;
    current_ = heap.get();
    heaps_.push_back(std::move(heap));
    if (heaps_.size() > 1) return;
    c10::SetCPUAllocator(this, std::numeric_limits<std::uint8_t>::max());
  }

  // The block is its own context: raw_deallocate() requires it.
  c10::DataPtr allocate(std::size_t bytes) override {
    Heap* const heap = current_.load(std::memory_order_acquire);
    if (bytes >= kLeastHeapTensor && heap->shareable())
      if (std::byte* const block = heap->take(bytes))
        return {block, block, &free_anything, c10::Device(c10::kCPU)};
    return previous_->allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_anything; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  HeapAllocator() : previous_(c10::GetCPUAllocator()) {}

  // Frees blocks of heaps, and memory of the previous allocator.
  static void free_anything(void* memory) {
    if (Heap* const heap = instance().heap_of(memory))
      heap->give_back(static_cast<const std::byte*>(memory));
    else
      instance().previous_->raw_deleter()(memory);
  }

  // Null for memory outside all heaps. A block's heap is usually the current
  // one.
  Heap* heap_of(const void* block) {
    Heap* const current = current_.load(std::memory_order_acquire);
    if (current->offset_of(block, 1)) return current;
    MutexLock lock(mutex_);
    for (const auto& heap : heaps_)
      if (heap->offset_of(block, 1)) return heap.get();
    return nullptr;
  }

  c10::Allocator* const previous_;
  std::atomic<Heap*> current_{nullptr};
  Mutex mutex_;
  std::vector<std::shared_ptr<Heap>> heaps_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

void allocate_tensors_from(std::shared_ptr<Heap> heap) {
  if (heap) HeapAllocator::instance().use(std::move(heap));
}

}  // namespace lockstep
