// Memory that several processes map: sealed, sparse memfds.
//
// A memfd costs memory only for the pages that somebody touched. It is sealed
// against shrinking, so that a peer cannot turn our reads into SIGBUS, and kept
// out of core dumps, so that writing one does not hide a death for seconds.
//
// Threads: create and map may be called from any thread.
// Errors:  SystemError with what the kernel refused.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// A new memfd of `bytes` zero bytes. `name` shows up in /proc/PID/maps.
FileDescriptor create_shared_memory(const std::string& name, std::size_t bytes);

// The same, which grow_shared_memory() may make larger.
FileDescriptor create_growing_memory(const std::string& name,
                                     std::size_t bytes);

// Gives such a memfd at least `bytes` bytes. Several processes may do so at
// once.
void grow_shared_memory(const FileDescriptor& memory, std::size_t bytes);

// The bytes of a mapped memfd. Unmapped by the destructor.
class SharedMapping {
 public:
  // Use map_shared_memory().
  SharedMapping(std::byte* data, std::size_t bytes)
      : data_(data), bytes_(bytes) {}
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// Maps all of `descriptor`, a memfd, for reading and writing. A process maps
// each memfd once: ranks that are threads of one process get the same mapping,
// which is also what lets the thread sanitizer see their races.
std::shared_ptr<SharedMapping> map_shared_memory(
    const FileDescriptor& descriptor);

// The same of `bytes` bytes of it from `offset` on, a multiple of the page's
// size; always with the same number of bytes at one offset.
std::shared_ptr<SharedMapping> map_shared_memory(
    const FileDescriptor& descriptor, std::size_t offset, std::size_t bytes);

}  // namespace lockstep
