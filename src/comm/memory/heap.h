// The memory of this process that the other ranks of its host can reach.
//
// The heap hands out blocks of one large, sparse shared-memory segment; peers
// map it whole, so that a collective reads and writes buffers in place. It
// belongs to the process, not to a rank: ranks that are threads share it. Freed
// blocks are kept for reuse (BlockMap) up to a limit; beyond it their memory
// goes back to the kernel.
//
// After an error a late peer may still be writing to the buffers of the
// operation that failed. detach() turns those into private memory at the same
// addresses, which no peer can reach. The segment keeps the old pages, which
// peers may still read: they are neither given back to the kernel nor used
// again. All other memory stays shared.
//
// A forked child has a private copy of the memory, in which it neither takes
// nor gives back blocks: otherwise parent and child would get the same block.
// The parent's writes after the fork may still show in pages that the child has
// not written to.
//
// Threads: every method may be called from any thread.
// Errors:  take() and allocate() return null when the heap is full.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include "src/base/mutex.h"
#include "src/comm/memory/block_map.h"
#include "src/comm/memory/page_set.h"
#include "src/net/shared_memory.h"

namespace lockstep {

struct HeapOptions {
  // Address space; memory is used as it is touched.
  std::size_t bytes = std::size_t{1} << 34;
  // How much memory free blocks may keep.
  std::size_t kept_bytes = std::size_t{1} << 32;
  // When the heap asks the kernel for memory: as a page is touched, or for a
  // whole block as it is taken. A kernel that limits committed memory may
  // refuse: that is SIGBUS in the first case and a full heap in the second.
  enum class Backing { kOnTouch, kOnTake };
  Backing backing = backing_of_kernel();

  // kOnTake with vm.overcommit_memory=2.
  static Backing backing_of_kernel();

  // The same options within the memory limit of the process's cgroup; free
  // blocks keep at most a quarter of the limit.
  HeapOptions within(std::optional<std::size_t> memory_limit) const;
};

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  static constexpr std::size_t kAlignment = BlockMap::kUnit;

  // Throws SystemError when the kernel refuses (RLIMIT_AS, RLIMIT_FSIZE):
  // callers then work without a heap.
  static std::shared_ptr<Heap> create(const HeapOptions& options);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // A block of at least `bytes` bytes, not initialised. Null when the heap is
  // full, and in a forked child.
  std::byte* take(std::size_t bytes);

  // Ends a block that take() returned. In a forked child it does nothing.
  void give_back(const std::byte* block);

  // A zeroed block, in use until the pointer is destroyed. It keeps the heap
  // alive.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // The offset of `address` in the heap if all of [address, address + bytes)
  // lies in it.
  std::optional<std::size_t> offset_of(const void* address,
                                       std::size_t bytes) const;

  // The same if peers reach all of it: empty if a part was detached.
  std::optional<std::size_t> shared_offset_of(const void* address,
                                              std::size_t bytes) const;

  // The segment, for peers to map.
  const FileDescriptor& descriptor() const { return descriptor_; }

  // Makes the pages of [address, address + bytes), which lies in the heap,
  // private to this process. Their contents stay, even while other threads
  // write. Throws SystemError when the kernel refuses: then peers can still
  // write there. Takes as long as copying the pages.
  void detach(const std::byte* address, std::size_t bytes);
  bool has_private_pages() const { return !private_.empty(); }

  // Whether a new group may use it: it was not forked.
  bool shareable() const { return !forked_.load(); }

  // Bytes in taken blocks, and in free blocks that have memory.
  std::size_t bytes_in_use() const;
  std::size_t bytes_kept() const;

 private:
  Heap(const HeapOptions& options, FileDescriptor descriptor,
       std::shared_ptr<SharedMapping> mapping);
  struct Pages {
    std::size_t begin, end;
  };
  bool back(std::size_t offset, std::size_t bytes) const;
  Pages pages_of(std::size_t offset, std::size_t bytes) const;
  bool map_privately(Pages pages) const noexcept;
  void make_private(Pages pages);
  void retire(std::size_t offset, std::size_t bytes) const;
  void forget(std::size_t offset, std::size_t bytes) const;
  void punch(Pages pages) const;
  template <class Visit>
  void visit_whole_pages(std::size_t offset, std::size_t bytes,
                         const Visit& visit) const;
  void keep_at_most(std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);
  // Runs in a child right after fork, where few calls are safe.
  friend class HeapsOfProcess;
  void be_forked() noexcept;

  const std::size_t page_bytes_;
  const std::size_t most_kept_;
  const HeapOptions::Backing backing_;
  FileDescriptor descriptor_;
  std::shared_ptr<SharedMapping> mapping_;
  mutable Mutex mutex_;
  BlockMap blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  // A page is added before it becomes private. So a thread that knows that
  // peers have written, and then finds the page absent, sees their writes.
  PageSet private_;
  Mutex detaching_;  // held while pages are copied; never with mutex_
  std::atomic<bool> forked_{false};
  std::atomic<bool> was_refused_{false};  // private memory, by the kernel
};

// The heap of this process, made on first use; null if `options.bytes` is 0 or
// the kernel refuses a heap (logged once). It lives as long as a group or a
// block uses it.
std::shared_ptr<Heap> process_heap(const HeapOptions& options);

}  // namespace lockstep
