#include "src/comm/memory/heap.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "lockstep/base/error.h"
#include "src/base/control_groups.h"
#include "src/base/first_line.h"
#include "src/base/log.h"
#include "src/base/round_up.h"
#include "src/comm/memory/forked_memory.h"

namespace lockstep {
namespace {

std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Makes every page that touches [begin, end) this process's own copy: replaces
// a byte by itself atomically, while other threads may write. (Not fetch_or(0),
// which compilers turn into a load.)
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

// The heaps that a forked child must make private. The table has a fixed size:
// a child right after fork must not take a lock or allocate memory.
class HeapsOfProcess {
 public:
  static HeapsOfProcess& instance() {
    static HeapsOfProcess& table = *new HeapsOfProcess;  // outlives all heaps
    return table;
  }

  // Returns false if the table is full.
  bool add(Heap& heap) {
    return std::ranges::any_of(heaps_, [&](std::atomic<Heap*>& slot) {
      Heap* none = nullptr;
      return slot.compare_exchange_strong(none, &heap);
    });
  }
  void remove(Heap& heap) {
    for (std::atomic<Heap*>& slot : heaps_) {
      Heap* expected = &heap;
      slot.compare_exchange_strong(expected, nullptr);
    }
  }
  bool has_forked(const void* address) const {
    return forked_.load() &&
           std::ranges::any_of(heaps_, [&](const std::atomic<Heap*>& slot) {
             const Heap* const heap = slot.load();
             return heap != nullptr && heap->forked_.load() &&
                    heap->shared_offset_of(address, 1);
           });
  }

 private:
  HeapsOfProcess() { ::pthread_atfork(nullptr, nullptr, &in_child); }

  static void in_child() {
    instance().forked_ = true;
    for (std::atomic<Heap*>& slot : instance().heaps_)
      if (Heap* const heap = slot.load()) heap->be_forked();
  }

  std::array<std::atomic<Heap*>, 256> heaps_{};
  std::atomic<bool> forked_{false};
};

Heap::Heap(const HeapOptions& options, FileDescriptor descriptor,
           std::shared_ptr<SharedMapping> mapping)
    : page_bytes_(page_bytes()),
      most_kept_(options.kept_bytes),
      backing_(options.backing),
      descriptor_(std::move(descriptor)),
      mapping_(std::move(mapping)),
      blocks_(mapping_->size()),
      private_(mapping_->size() / page_bytes_) {}

Heap::~Heap() { HeapsOfProcess::instance().remove(*this); }

std::shared_ptr<Heap> Heap::create(const HeapOptions& options) {
  const std::size_t page = page_bytes();
  auto descriptor =
      create_shared_memory("lockstep heap", round_up_to(page, options.bytes));
  auto mapping = map_shared_memory(descriptor);
  std::shared_ptr<Heap> heap(
      new Heap(options, std::move(descriptor), std::move(mapping)));
  if (!HeapsOfProcess::instance().add(*heap))
    throw SystemError("this process has too many shared heaps", ENOMEM);
  return heap;
}

std::byte* Heap::take(std::size_t bytes) {
  if (forked_.load(std::memory_order_relaxed)) return nullptr;
  MutexLock lock(mutex_);
  const auto offset = blocks_.take(bytes);
  if (!offset) return nullptr;
  if (backing_ == HeapOptions::Backing::kOnTake && !back(*offset, bytes)) {
    blocks_.give_back(*offset);
    return nullptr;
  }
  return mapping_->data() + *offset;
}

// Whether the kernel has memory for all pages of the block.
bool Heap::back(std::size_t offset, std::size_t bytes) const {
  const Pages pages = pages_of(offset, std::max<std::size_t>(bytes, 1));
  int result = 0;
  do {
    result = ::fallocate(
        descriptor_.get(), 0, static_cast<off_t>(pages.begin * page_bytes_),
        static_cast<off_t>((pages.end - pages.begin) * page_bytes_));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

void Heap::give_back(const std::byte* block) {
  if (forked_.load(std::memory_order_relaxed)) return;
  const auto offset = static_cast<std::size_t>(block - mapping_->data());
  MutexLock lock(mutex_);
  if (has_private_pages()) {
    const Pages pages = pages_of(offset, blocks_.size_of(offset));
    if (private_.has_any(pages.begin, pages.end))
      return retire(offset, blocks_.retire(offset));
  }
  blocks_.give_back(offset);
  // Frees some more, so that the next blocks do not come here again.
  if (blocks_.bytes_kept() > most_kept_) keep_at_most(most_kept_ / 2);
}

// The pages that [offset, offset + bytes) touches.
Heap::Pages Heap::pages_of(std::size_t offset, std::size_t bytes) const {
  return {offset / page_bytes_,
          (offset + bytes + page_bytes_ - 1) / page_bytes_};
}

void Heap::keep_at_most(std::size_t bytes) {
  blocks_.release(bytes, [this](std::size_t offset, std::size_t size) {
    forget(offset, size);
  });
}

std::shared_ptr<std::byte> Heap::allocate(std::size_t bytes) {
  std::byte* const block = take(bytes);
  if (block == nullptr) return nullptr;
  std::memset(block, 0, bytes);
  return {block, [self = shared_from_this()](std::byte* taken) {
            self->give_back(taken);
          }};
}

// A block whose segment memory peers may still use is not used again. Its
// private pages go back to the kernel; their pages of the segment stay.
void Heap::retire(std::size_t offset, std::size_t bytes) const {
  visit_whole_pages(offset, bytes, [this](Pages run, bool is_private) {
    if (is_private)
      ::madvise(mapping_->data() + run.begin * page_bytes_,
                (run.end - run.begin) * page_bytes_, MADV_DONTNEED);
    else
      punch(run);
  });
}

// Gives whole pages back to the kernel, except private ones, whose pages of the
// segment a peer may still read: those can only be at the range's ends, which
// may share a page with a detached block.
void Heap::forget(std::size_t offset, std::size_t bytes) const {
  visit_whole_pages(offset, bytes, [this](Pages run, bool is_private) {
    if (!is_private) punch(run);
  });
}

void Heap::punch(Pages pages) const {
  ::fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(pages.begin * page_bytes_),
              static_cast<off_t>((pages.end - pages.begin) * page_bytes_));
}

// Calls `visit` for each run of pages within [offset, offset + bytes) that are
// all private or all shared.
template <class Visit>
void Heap::visit_whole_pages(std::size_t offset, std::size_t bytes,
                             const Visit& visit) const {
  const std::size_t last = (offset + bytes) / page_bytes_;
  std::size_t page = round_up_to(page_bytes_, offset) / page_bytes_;
  while (page < last) {
    const std::size_t end =
        has_private_pages() ? private_.end_of_run(page, last) : last;
    visit(Pages{page, end}, private_.has(page));
    page = end;
  }
}

void Heap::be_forked() noexcept {
  forked_ = true;
  const std::size_t pages = mapping_->size() / page_bytes_;
  // If the kernel has refused private memory, pages in private_ may be shared.
  const bool as_they_say = has_private_pages() && !was_refused_.load();
  for (std::size_t page = 0; page < pages;) {
    const std::size_t end =
        as_they_say ? private_.end_of_run(page, pages) : pages;
    const bool is_private = as_they_say && private_.has(page);
    // A fault is better than a write to the parent's memory.
    if (!is_private && !map_privately({page, end}))
      ::munmap(mapping_->data() + page * page_bytes_,
               (end - page) * page_bytes_);
    page = end;
  }
}

// Atomic for every thread: no write of this process is lost.
bool Heap::map_privately(Pages pages) const noexcept {
  std::byte* const begin = mapping_->data() + pages.begin * page_bytes_;
  const std::size_t bytes = (pages.end - pages.begin) * page_bytes_;
  if (::mmap(begin, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, descriptor_.get(),
             static_cast<off_t>(pages.begin * page_bytes_)) == MAP_FAILED)
    return false;
  ::madvise(begin, bytes, MADV_DONTDUMP);
  return true;
}

bool is_memory_of_parent(const void* address) {
  return HeapsOfProcess::instance().has_forked(address);
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

std::optional<std::size_t> Heap::shared_offset_of(const void* address,
                                                  std::size_t bytes) const {
  const auto offset = offset_of(address, bytes);
  if (!offset || private_.empty() || bytes == 0) return offset;
  const Pages pages = pages_of(*offset, bytes);
  if (private_.has_any(pages.begin, pages.end)) return std::nullopt;
  return offset;
}

void Heap::detach(const std::byte* address, std::size_t bytes) {
  const auto offset = offset_of(address, bytes);
  LOCKSTEP_CHECK(offset.has_value(), "detaching memory outside the heap");
  const Pages pages = pages_of(*offset, bytes);
  MutexLock lock(detaching_);
  for (std::size_t page = pages.begin; page < pages.end;) {
    const std::size_t end = private_.end_of_run(page, pages.end);
    if (!private_.has(page)) make_private({page, end});
    page = end;
  }
}

// Maps the range privately first, then replaces the pages that peers may still
// write to by private copies. (A copy made first and moved over the old mapping
// would lose other threads' writes in between.)
void Heap::make_private(Pages pages) {
  const bool mapped = map_privately(pages);
  const int error = errno;
  if (!mapped) was_refused_ = true;
  // After the mapping: a child that is forked in between maps privately itself.
  // Also if the kernel refused the mapping, so that the block is not used
  // again.
  private_.add(pages.begin, pages.end);
  if (!mapped) throw SystemError("the kernel refused private memory", error);
  std::byte* const begin = mapping_->data() + pages.begin * page_bytes_;
  const std::size_t bytes = (pages.end - pages.begin) * page_bytes_;
  if (::madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL)
    throw SystemError("the kernel refused private memory", errno);
  own_pages(begin, begin + bytes, page_bytes_);  // before Linux 5.14
}

std::size_t Heap::bytes_in_use() const {
  MutexLock lock(mutex_);
  return blocks_.bytes_used();
}

std::size_t Heap::bytes_kept() const {
  MutexLock lock(mutex_);
  return blocks_.bytes_kept();
}

HeapOptions::Backing HeapOptions::backing_of_kernel() {
  constexpr int kCountsPromises = 2;
  int mode = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> mode;
  return mode == kCountsPromises ? Backing::kOnTake : Backing::kOnTouch;
}

HeapOptions HeapOptions::within(std::optional<std::size_t> memory_limit) const {
  HeapOptions options = *this;
  if (!memory_limit) return options;
  options.bytes = std::min(options.bytes, *memory_limit);
  options.kept_bytes = std::min(options.kept_bytes, *memory_limit / 4);
  return options;
}

std::shared_ptr<Heap> process_heap(const HeapOptions& options) {
  // The heap belongs to the process, and so does this pointer. The heap lives
  // only as long as a group or a block uses it.
  static Mutex mutex;
  static std::weak_ptr<Heap> current;
  if (options.bytes == 0) return nullptr;
  MutexLock lock(mutex);
  auto heap = current.lock();
  if (heap && heap->shareable()) return heap;
  try {
    heap = Heap::create(options.within(memory_limit()));
  } catch (const SystemError& error) {
    log(LogLevel::kWarn,
        fmt::format("no shared heap, collectives will copy: {}",
                    first_line(error.what())));
    return nullptr;
  }
  current = heap;
  return heap;
}

}  // namespace lockstep
