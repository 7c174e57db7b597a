// The memory of this process that the other ranks of its host can reach.
//
// One large, sparse shared-memory segment, from which blocks are handed out;
// peers map it whole, so that a collective reads and writes buffers where they
// lie. It belongs to the process, not to a rank: ranks that are threads share
// it.
//
// After an error a lost or late peer may still be writing. detach() turns the
// heap into private memory at the same addresses, after which nothing that a
// peer does reaches this process. A detached heap is never shared again; the
// next group gets a new one.
//
// Threads: every method may be called from any thread.
// Errors:  allocate() returns null when the heap is full.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/base/mutex.h"
#include "lockstep/net/shared_memory.h"

namespace lockstep {

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  static constexpr std::size_t kAlignment = 64;

  // Reserves `bytes` of address space. SystemError when the kernel refuses
  // (RLIMIT_AS, RLIMIT_FSIZE): callers then go without a heap.
  static std::shared_ptr<Heap> create(std::size_t bytes);

  // A zeroed block of `bytes` bytes, or null when there is no room. The block
  // keeps the heap alive.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // Where `address` lies within the heap if all of [address, address + bytes)
  // does.
  std::optional<std::size_t> offset_of(const void* address,
                                       std::size_t bytes) const;

  // The segment, to be passed to peers and mapped by them.
  const FileDescriptor& descriptor() const { return descriptor_; }

  // Makes the memory private to this process. What is in it stays.
  void detach();
  bool detached() const { return detached_.load(); }

  std::size_t bytes_in_use() const;

 private:
  Heap(FileDescriptor descriptor, std::shared_ptr<SharedMapping> mapping);
  void free(std::size_t offset);

  FileDescriptor descriptor_;
  std::shared_ptr<SharedMapping> mapping_;
  mutable Mutex mutex_;
  // Free and used blocks by offset; neighbouring free blocks are joined.
  std::map<std::size_t, std::size_t> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::size_t, std::size_t> used_ LOCKSTEP_GUARDED_BY(mutex_);
  // True before the first page is made private, so that whoever reads what
  // peers wrote and then finds it false has read what they wrote.
  std::atomic<bool> detached_{false};
};

// The heap of this process, made on first use with `bytes` bytes; null when
// `bytes` is 0 or the kernel refuses one (said once in the log).
std::shared_ptr<Heap> process_heap(std::size_t bytes);

}  // namespace lockstep
