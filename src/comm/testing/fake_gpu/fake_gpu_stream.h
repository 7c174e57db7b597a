// Streams and events of a fake GPU: queues of tasks that are carried out later,
// each stream's in order.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/nccl/gpu_table.h"
#include "src/comm/testing/fake_gpu/fake_gpu_chance.h"
#include "src/comm/testing/fake_gpu/fake_gpu_handles.h"
#include "src/comm/testing/fake_gpu/fake_gpu_memory.h"

namespace lockstep {

class FakeCapture;     // fake_gpu_capture.h
struct FakeOperation;  // fake_gpu_comm.h

// A computation of another library, and the memory that it reads and writes.
struct FakeKernel {
  std::function<void()> compute{};
  std::vector<MemoryUse> uses{};
};

// The moment that one event_record() marks.
struct FakeMoment {
  bool happened = false;
  VectorClock knows{};
  // Whether it was recorded in a capture, and so never happens; and in which
  // one.
  bool is_captured = false;
  std::weak_ptr<FakeCapture> capture{};
};

struct FakeEvent {
  int device = 0;
  std::shared_ptr<FakeMoment> moment{};  // null: never recorded
};

struct FakeTask {
  enum class Kind { kCopy, kKernel, kRecord, kWait, kOperation };
  Kind kind = Kind::kCopy;
  std::shared_ptr<const std::string> text{};
  VectorClock host{};  // the calling thread's knowledge
  std::uint64_t due = 0;
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<FakeMoment> moment{};        // recorded or waited for
  std::shared_ptr<FakeOperation> operation{};  // ended by FakeComms
  FakeKernel kernel{};

  std::vector<MemoryUse> uses() const;  // a copy's, or a kernel's
};

struct FakeStream {
  std::size_t actor = 0;
  int device = 0;
  bool destroyed = false;
  bool ends_by_itself = false;
  VectorClock knows{};
  std::deque<FakeTask> tasks{};
  // The capture of the stream and its tasks; null: its tasks run.
  std::shared_ptr<FakeCapture> capture{};

  std::string name() const;
};

class FakeStreams {
 public:
  FakeStreams(FakeMemory& memory, FakeChance& chance)
      : memory_(memory), chance_(chance) {}
  ~FakeStreams();
  FakeStreams(const FakeStreams&) = delete;
  FakeStreams& operator=(const FakeStreams&) = delete;

  LockstepGpuStream* create(int device);
  // Returns null, and notes a violation, if it has ended. The null stream is
  // the device's default stream.
  std::shared_ptr<FakeStream> find(LockstepGpuStream* stream, int device);
  void destroy(LockstepGpuStream* stream);
  std::size_t alive() const { return handles_.size(); }

  // Makes a stream that ends by itself.
  std::shared_ptr<FakeStream> create_hidden(int device);

  void give(FakeStream& stream, FakeTask task);

  // Runs one task of a randomly drawn stream; false if no task can run. Leaves
  // operations to FakeComms.
  bool step();
  bool all_done() const;
  const std::vector<std::shared_ptr<FakeStream>>& all() const {
    return streams_;
  }
  void for_each_task(const std::function<void(const FakeTask&)>& look) const;

 private:
  std::shared_ptr<FakeStream> make(int device);
  void drop_destroyed();
  bool may_run(const FakeStream& stream) const;
  void run(FakeStream& stream);

  FakeMemory& memory_;
  FakeChance& chance_;
  FakeHandles<LockstepGpuStream, FakeStream> handles_;
  std::map<int, std::shared_ptr<FakeStream>> default_streams_;  // by device
  // All streams, including destroyed ones with tasks left.
  std::vector<std::shared_ptr<FakeStream>> streams_;
};

}  // namespace lockstep
