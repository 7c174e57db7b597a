// Memory of a GPU that a test fills and reads by copies.
//
// Threads: one thread at a time.
// Errors:  those of gpu.h; Timeout when a copy does not end within a minute.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/base/buffer.h"
#include "src/comm/nccl/gpu.h"

namespace lockstep {

class DeviceBlock {
 public:
  // New memory, zeroed and not registered.
  DeviceBlock(const Gpu& gpu, std::size_t bytes);
  // Memory that another object allocated on `gpu`.
  DeviceBlock(const Gpu& gpu, std::shared_ptr<std::byte> memory,
              std::size_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  // All of it, as float32.
  Buffer floats() const;

  // Copy all of it, on the default stream, which a group's calls follow, and
  // wait for the end.
  void upload(const void* from) const { copy(data(), from); }
  void download(void* to) const { copy(to, data()); }

 private:
  void copy(void* to, const void* from) const;

  Gpu gpu_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_;
};

}  // namespace lockstep
