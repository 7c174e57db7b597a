// The memory of this process that the other ranks of its host can reach.
//
// One large, sparse shared-memory segment, from which blocks are handed out;
// peers map it whole, so that a collective reads and writes buffers where they
// lie. It belongs to the process, not to a rank: ranks that are threads share
// it. Blocks that were given back are kept for the next who asks (BlockMap),
// up to a limit, beyond which their memory goes back to the kernel.
//
// After an error a late peer may still be writing to the buffers of the
// operation that failed. detach() turns those into private memory at the same
// addresses, after which nothing that a peer does reaches them. The segment
// keeps what peers still read there: its pages are neither given back to the
// kernel nor used again. All other memory stays shared.
//
// A forked child has the memory as a copy of its own, in which it neither takes
// nor gives back blocks: its parent and it would both get the same one. What
// the parent writes after the fork may still show in pages that the child has
// not written to.
//
// Threads: every method may be called from any thread.
// Errors:  take() and allocate() return null when the heap is full.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/block_map.h"
#include "lockstep/comm/page_set.h"
#include "lockstep/net/shared_memory.h"

namespace lockstep {

struct HeapOptions {
  // Address space; memory is used as it is touched.
  std::size_t bytes = std::size_t{1} << 34;
  // How much memory free blocks may keep.
  std::size_t kept_bytes = std::size_t{1} << 32;
  // When the kernel is asked for memory: as a page is touched, or for a whole
  // block as it is taken. Where the kernel counts what it has promised, it may
  // refuse, which is SIGBUS in the first case and a full heap in the second.
  enum class Backing { kOnTouch, kOnTake };
  Backing backing = backing_of_kernel();

  // kOnTake with vm.overcommit_memory=2.
  static Backing backing_of_kernel();

  // The same within the limit of the process's cgroup, of which free blocks
  // keep a quarter at most.
  HeapOptions within(std::optional<std::size_t> memory_limit) const;
};

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  static constexpr std::size_t kAlignment = BlockMap::kUnit;

  // SystemError when the kernel refuses (RLIMIT_AS, RLIMIT_FSIZE): callers then
  // go without a heap.
  static std::shared_ptr<Heap> create(const HeapOptions& options);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // A block of at least `bytes` bytes that hold anything. Null when there is no
  // room, and in a forked child.
  std::byte* take(std::size_t bytes);

  // Ends a block that take() returned. In a forked child it does nothing.
  void give_back(const std::byte* block);

  // A zeroed block, taken until the pointer is gone. It keeps the heap alive.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // Where `address` lies within the heap if all of [address, address + bytes)
  // does.
  std::optional<std::size_t> offset_of(const void* address,
                                       std::size_t bytes) const;

  // The same if peers reach all of it: nothing where a part was detached.
  std::optional<std::size_t> shared_offset_of(const void* address,
                                              std::size_t bytes) const;

  // The segment, to be passed to peers and mapped by them.
  const FileDescriptor& descriptor() const { return descriptor_; }

  // Makes the pages of [address, address + bytes), which lies in the heap,
  // private to this process. What is in them stays, whatever other threads
  // write meanwhile. Throws SystemError when the kernel refuses: then peers can
  // still write there. Takes as long as copying the pages.
  void detach(const std::byte* address, std::size_t bytes);
  bool has_private_pages() const { return !private_.empty(); }

  // Whether a new group may use it: it was not forked.
  bool shareable() const { return !forked_.load(); }

  // In blocks that are taken; and in free ones that have memory behind them.
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
  // In a child, right after fork: only what is safe there.
  friend class HeapsOfProcess;
  void be_forked() noexcept;

  const std::size_t page_bytes_;
  const std::size_t most_kept_;
  const HeapOptions::Backing backing_;
  FileDescriptor descriptor_;
  std::shared_ptr<SharedMapping> mapping_;
  mutable Mutex mutex_;
  BlockMap blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  // A page is in it before it is made private, so that a thread that knows that
  // peers have written, and then finds the page absent, has what they wrote.
  PageSet private_;
  Mutex detaching_;  // held while pages are copied; never with mutex_
  std::atomic<bool> forked_{false};
  std::atomic<bool> was_refused_{false};  // private memory, by the kernel
};

// The heap of this process, made on first use; null when `options.bytes` is 0
// or the kernel refuses one (said once in the log). It lives as long as a group
// or a block uses it.
std::shared_ptr<Heap> process_heap(const HeapOptions& options);

}  // namespace lockstep
