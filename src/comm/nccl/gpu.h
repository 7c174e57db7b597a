// RAII objects for streams, events and communicators, and exceptions for the
// table's results.
//
// Threads: an object belongs to one thread at a time; it is made on the device
//          that the thread uses then.
// Errors:  SystemError (ENOMEM) naming the device when memory runs out;
//          NetworkError when NCCL has lost a rank; InvalidArgument for misuse,
//          without a driver, and for calls that cannot be captured; Error for
//          all else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "src/comm/nccl/gpu_table.h"

namespace lockstep {

class CommMemory;

// One GPU.
class Gpu {
 public:
  Gpu(const LockstepGpuTable& table, int index)
      : table_(&table), index_(index) {}

  const LockstepGpuTable& table() const { return *table_; }
  int index() const { return index_; }

  // The number of GPUs that this process sees.
  static int count(const LockstepGpuTable& table);
  // A globally unique name of the device.
  std::string name() const;

  // The capture that `stream` is in; 0 if it is not being captured.
  std::uint64_t capture_of(LockstepGpuStream* stream) const;
  // Whether it is being captured; unlike capture_of(), does not throw for an
  // invalidated capture.
  bool is_capturing(LockstepGpuStream* stream) const;

  // Throws unless `result` is kGpuDone; `call` names the function that returned
  // it.
  void check(LockstepGpuResult result, const LockstepGpuOutcome& outcome,
             std::string_view call) const;
  // The same, except that kGpuNotYet returns false.
  bool is_done(LockstepGpuResult result, const LockstepGpuOutcome& outcome,
               std::string_view call) const;

 private:
  const LockstepGpuTable* table_;
  int index_;
};

// Selects the device for the calling thread within the scope; restores the
// previous device, if that was ever used.
class GpuScope {
 public:
  explicit GpuScope(const Gpu& gpu);
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

 private:
  const Gpu& gpu_;
  std::int32_t previous_ = 0;
};

class GpuEvent {
 public:
  explicit GpuEvent(const Gpu& gpu);

  void record(LockstepGpuStream* stream);
  // Makes work that is given to `stream` from now on wait for the event.
  void hold_up(LockstepGpuStream* stream) const;
  bool happened() const;
  LockstepGpuEvent* get() const { return event_.get(); }

 private:
  Gpu gpu_;
  std::unique_ptr<LockstepGpuEvent, void (*)(LockstepGpuEvent*)> event_;
};

class GpuStream {
 public:
  explicit GpuStream(const Gpu& gpu);
  LockstepGpuStream* get() const { return stream_.get(); }

 private:
  std::unique_ptr<LockstepGpuStream, void (*)(LockstepGpuStream*)> stream_;
};

// A communicator and the stream that orders its calls.
class GpuCommunicator {
 public:
  // Does not wait for other ranks: see is_ready().
  GpuCommunicator(const Gpu& gpu, const LockstepGpuCommConfig& config);
  ~GpuCommunicator();
  GpuCommunicator(const GpuCommunicator&) = delete;
  GpuCommunicator& operator=(const GpuCommunicator&) = delete;

  // Whether the communicator can take calls: all ranks have come, and its
  // previous calls are started. Throws once the communicator has failed.
  bool is_ready();
  LockstepGpuStream* stream() const { return stream_.get(); }

  // The calls between the two form one operation.
  void begin();
  void call(const LockstepGpuCall& call);
  void copy(void* to, const void* from, std::size_t bytes);
  void end();

  // Lets NCCL access memory without copies. Call both functions when the line
  // is ready and has no call that uses the memory. The handle may be null.
  void* register_memory(void* memory, std::size_t bytes);
  void unregister_memory(void* handle) noexcept;

  // The memory that NCCL may access through this line until the last of this
  // process's ranks has ended its own.
  std::weak_ptr<CommMemory> memory() const { return memory_; }

  // The orderly end, when the line is ready and has no call under way: call
  // finalize() on all ranks, wait until is_ready() there again, then call
  // destroy(). An earlier destroy() would wait for the others.
  void finalize();
  void destroy() noexcept;

  // Every other end, including the destructor's. Calls under way on the device
  // stop at once or a moment later. NCCL then frees memory, which waits for the
  // whole device and so for all other lines that are stuck: see
  // abort_together().
  void abort() noexcept;

 private:
  void end(void (*how)(LockstepGpuComm*)) noexcept;

  Gpu gpu_;
  GpuStream stream_;
  LockstepGpuComm* comm_ = nullptr;  // null once ended
  std::shared_ptr<CommMemory> memory_;
};

// Aborts lines of one device concurrently, because no abort may return before
// all have begun, and calls `end_graphs` at the same time: NCCL waits for the
// graphs that use a line, and the device, which runs the graphs, waits for the
// lines.
void abort_together(std::span<GpuCommunicator* const> lines,
                    const std::function<void()>& end_graphs) noexcept;

// A new id for GpuCommunicator.
std::string unique_id(const Gpu& gpu);

}  // namespace lockstep
