#include "lockstep/comm/heap.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

std::size_t round_up(std::size_t bytes) {
  return std::max((bytes + Heap::kAlignment - 1) / Heap::kAlignment,
                  std::size_t{1}) *
         Heap::kAlignment;
}

// Makes every page that touches [begin, end) this process's own copy: replaces
// a byte by itself, whatever other threads write. (Not fetch_or(0), which
// compilers turn into a load.)
void own_pages(std::byte* begin, std::byte* end, std::size_t page) {
  for (std::byte* at = begin; at < end; at += page) {
    const std::atomic_ref<unsigned char> byte(
        reinterpret_cast<unsigned char&>(*at));
    unsigned char value = byte.load();
    while (!byte.compare_exchange_weak(value, value)) {
    }
  }
}

}  // namespace

Heap::Heap(FileDescriptor descriptor, std::shared_ptr<SharedMapping> mapping)
    : descriptor_(std::move(descriptor)), mapping_(std::move(mapping)) {
  free_[0] = mapping_->size();
}

std::shared_ptr<Heap> Heap::create(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto descriptor =
      create_shared_memory("lockstep heap", (bytes + page - 1) / page * page);
  auto mapping = map_shared_memory(descriptor);
  return std::shared_ptr<Heap>(
      new Heap(std::move(descriptor), std::move(mapping)));
}

std::shared_ptr<std::byte> Heap::allocate(std::size_t bytes) {
  if (bytes > mapping_->size()) return nullptr;  // else rounding up might wrap
  const std::size_t need = round_up(bytes);
  std::size_t offset = 0;
  {
    MutexLock lock(mutex_);
    const auto fits = std::ranges::find_if(
        free_, [need](const auto& block) { return block.second >= need; });
    if (fits == free_.end()) return nullptr;
    offset = fits->first;
    const std::size_t left = fits->second - need;
    free_.erase(fits);
    if (left > 0) free_[offset + need] = left;
    used_[offset] = need;
  }
  std::byte* block = mapping_->data() + offset;
  std::memset(block, 0, need);
  return {block, [self = shared_from_this(), offset](std::byte*) {
            self->free(offset);
          }};
}

void Heap::free(std::size_t offset) {
  MutexLock lock(mutex_);
  const auto block = used_.find(offset);
  LOCKSTEP_CHECK(block != used_.end(), "freeing an unknown heap block");
  const std::size_t size = block->second;
  used_.erase(block);
  auto joined = free_.emplace(offset, size).first;
  const auto next = std::next(joined);
  if (next != free_.end() && joined->first + joined->second == next->first) {
    joined->second += next->second;
    free_.erase(next);
  }
  if (joined == free_.begin()) return;
  const auto previous = std::prev(joined);
  if (previous->first + previous->second != joined->first) return;
  previous->second += joined->second;
  free_.erase(joined);
}

std::optional<std::size_t> Heap::offset_of(const void* address,
                                           std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(mapping_->data());
  if (at < base || bytes > mapping_->size() ||
      at - base > mapping_->size() - bytes)
    return std::nullopt;
  return at - base;
}

// Remapping privately at the same address is one step for every thread: no
// write of ours is lost. Pages that peers may still write to are then replaced
// by our own copies one by one. (A copy made first and moved over the old
// mapping would lose what other threads write in between.)
void Heap::detach() {
  MutexLock lock(mutex_);
  if (detached_.exchange(true)) return;
  void* address =
      ::mmap(mapping_->data(), mapping_->size(), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, descriptor_.get(), 0);
  if (address == MAP_FAILED)
    throw SystemError("could not detach the shared heap from its peers", errno);
  ::madvise(address, mapping_->size(), MADV_DONTDUMP);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (const auto& [offset, size] : used_) {
    const std::size_t first = offset / page * page;
    own_pages(mapping_->data() + first, mapping_->data() + offset + size, page);
  }
}

std::size_t Heap::bytes_in_use() const {
  MutexLock lock(mutex_);
  std::size_t total = 0;
  for (const auto& block : used_) total += block.second;
  return total;
}

std::shared_ptr<Heap> process_heap(std::size_t bytes) {
  // The heap is the process's, so this one table is too. It is kept only as
  // long as a group or a block uses it.
  static Mutex mutex;
  static std::weak_ptr<Heap> current;
  if (bytes == 0) return nullptr;
  MutexLock lock(mutex);
  auto heap = current.lock();
  if (heap && !heap->detached()) return heap;
  try {
    heap = Heap::create(bytes);
  } catch (const SystemError& error) {
    const std::string_view text = error.what();
    log(LogLevel::kWarn,
        fmt::format("no shared heap, collectives will copy: {}",
                    text.substr(0, text.find('\n'))));
    return nullptr;
  }
  current = heap;
  return heap;
}

}  // namespace lockstep
