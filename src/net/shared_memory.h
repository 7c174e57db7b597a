// Memory that several processes map: sealed, sparse memfds.
//
// A memfd uses memory only for touched pages. It is sealed against shrinking,
// so that a peer cannot turn our reads into SIGBUS. It is excluded from core
// dumps, because writing a large dump hides a death for seconds.
//
// Threads: any thread may create and map.
// Errors:  SystemError naming the failed call.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "src/net/file_descriptor.h"

namespace lockstep {

// A new memfd of `bytes` zero bytes. `name` shows up in /proc/PID/maps.
FileDescriptor create_shared_memory(const std::string& name, std::size_t bytes);

// The same, but grow_shared_memory() may enlarge it.
FileDescriptor create_growing_memory(const std::string& name,
                                     std::size_t bytes);

// Enlarges such a memfd to at least `bytes` bytes. Several processes may call
// it at once.
void grow_shared_memory(const FileDescriptor& memory, std::size_t bytes);

// The bytes of a mapped memfd. The destructor unmaps them.
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
// which also lets the thread sanitizer see their races.
std::shared_ptr<SharedMapping> map_shared_memory(
    const FileDescriptor& descriptor);

// Maps `bytes` bytes from `offset`, a multiple of the page size. All calls with
// one offset must pass the same `bytes`.
std::shared_ptr<SharedMapping> map_shared_memory(
    const FileDescriptor& descriptor, std::size_t offset, std::size_t bytes);

}  // namespace lockstep
