// Streams, events and communicators as objects that free themselves, and the
// table's results as exceptions.
//
// Threads: an object belongs to one thread at a time; what it is made of is of
//          the device that the thread used then.
// Errors:  SystemError (ENOMEM) where memory ran out, naming the device;
//          NetworkError where NCCL has lost a rank; InvalidArgument for misuse,
//          without a driver, and for what cannot be captured; Error for all
//          else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/nccl/gpu_table.h"

namespace lockstep {

class CommMemory;

// One GPU.
class Gpu {
 public:
  Gpu(const LockstepGpuTable& table, int index)
      : table_(&table), index_(index) {}

  const LockstepGpuTable& table() const { return *table_; }
  int index() const { return index_; }

  // How many there are in this process's sight.
  static int count(const LockstepGpuTable& table);
  // What tells it from all others in the world.
  std::string name() const;

  // Which capture `stream` is in; 0: what it is given is carried out.
  std::uint64_t capture_of(LockstepGpuStream* stream) const;
  // Whether it is in one, which capture_of() throws for if it is spoilt.
  bool is_capturing(LockstepGpuStream* stream) const;

  // Throws unless `result` is done; `call` names what gave it.
  void check(LockstepGpuResult result, const LockstepGpuOutcome& outcome,
             std::string_view call) const;
  // The same; whether it is done, and not under way.
  bool is_done(LockstepGpuResult result, const LockstepGpuOutcome& outcome,
               std::string_view call) const;

 private:
  const LockstepGpuTable* table_;
  int index_;
};

// Within it the calling thread uses the device; afterwards the one before, if
// that was ever used.
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
  // What `stream` is given from now on begins when it has happened.
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

// A communicator, and the stream in whose order it works.
class GpuLine {
 public:
  // Waits for nobody: see is_ready().
  GpuLine(const Gpu& gpu, const LockstepGpuCommConfig& config);
  ~GpuLine();
  GpuLine(const GpuLine&) = delete;
  GpuLine& operator=(const GpuLine&) = delete;

  // Whether it can take calls: all ranks have come, and the last are started.
  // Throws once anything went wrong.
  bool is_ready();
  LockstepGpuStream* stream() const { return stream_.get(); }

  // One operation, of what is called between the two.
  void begin();
  void call(const LockstepGpuCall& call);
  void copy(void* to, const void* from, std::size_t bytes);
  void end();

  // Lets NCCL reach memory where it lies. Both when the line is ready, and has
  // been given nothing that uses the memory. The handle may be null.
  void* register_memory(void* memory, std::size_t bytes);
  void unregister_memory(void* handle) noexcept;

  // What NCCL may reach by this line until the last of this process's ranks has
  // ended its own.
  std::weak_ptr<CommMemory> memory() const { return memory_; }

  // The end in good order, when the line is ready and nothing of it is under
  // way: finalize() on all ranks, until it is_ready() there again, and then
  // destroy(). Before that destroy() would wait for the others.
  void finalize();
  void destroy() noexcept;

  // Any other end, also the destructor's. What is under way on the device stops
  // at once or a moment later. NCCL frees memory then, which waits for the
  // whole device, and so for all other lines that are stuck: see
  // abort_together().
  void abort() noexcept;

 private:
  void end(void (*how)(LockstepGpuComm*)) noexcept;

  Gpu gpu_;
  GpuStream stream_;
  LockstepGpuComm* comm_ = nullptr;  // null once ended
  std::shared_ptr<CommMemory> memory_;
};

// Aborts lines of one device, none of which may end before all are told to, and
// calls `end_graphs` beside that: NCCL waits for the graphs that use a line,
// and the device, which carries them out, for the lines.
void abort_together(std::span<GpuLine* const> lines,
                    const std::function<void()>& end_graphs) noexcept;

// For GpuLine's `id`.
std::string unique_id(const Gpu& gpu);

}  // namespace lockstep
