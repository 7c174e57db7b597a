// Ranks on fake GPUs, one per device, all driven by one thread of a test.
//
// Each has a stream and, on request, a communicator. No method blocks: it polls
// a bounded number of times.
//
// Threads: one thread at a time.
// Errors:  an error of the table fails the test.
#pragma once

#include <cstddef>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu.h"

namespace lockstep {

class FakeGpuRanks {
 public:
  explicit FakeGpuRanks(int ranks, FakeGpuOptions options = {});

  FakeGpu fake;
  const LockstepGpuTable& table;
  LockstepGpuOutcome outcome{};  // of the latest call

  LockstepGpuStream* stream(int rank) const { return at(streams_, rank); }
  LockstepGpuComm* comm(int rank) const { return at(comms_, rank); }
  int size() const { return static_cast<int>(streams_.size()); }

  // Makes a communicator of all ranks, or of the first `size`.
  void make_comms() { make_comms(size()); }
  void make_comms(int size);
  LockstepGpuResult create_comm(int rank, int size, const char* id);

  void abort(int rank);
  // Ends a communicator of all ranks in good order.
  void finalize(int rank);
  void destroy(int rank);
  void end_comms();

  // Polls comm_state() until it is no longer kGpuNotYet, or many times.
  LockstepGpuResult settle(LockstepGpuComm* comm);

  // Makes the call and waits for its start; within a group, only makes it.
  LockstepGpuResult call(int rank, const LockstepGpuCall& call);
  LockstepGpuResult call_on(LockstepGpuStream* stream, int rank,
                            const LockstepGpuCall& call);
  void begin_group();
  LockstepGpuResult end_group();

  LockstepGpuEvent* new_event(int rank);
  // Records a new event.
  LockstepGpuEvent* record(LockstepGpuStream* stream, int rank);
  void wait(LockstepGpuStream* stream, LockstepGpuEvent* event);
  void copy(void* to, const void* from, std::size_t bytes, int rank);
  // Whether it happens within many polls.
  bool happens(LockstepGpuEvent* event);
  // Whether all tasks of a rank's stream complete, likewise.
  bool finishes(int rank) { return happens(record(stream(rank), rank)); }

 private:
  template <typename Thing>
  static Thing at(const std::vector<Thing>& things, int rank) {
    return things.at(static_cast<std::size_t>(rank));
  }
  void use(int rank);

  std::vector<LockstepGpuStream*> streams_;
  std::vector<LockstepGpuComm*> comms_;
};

// A collective on floats.
LockstepGpuCall float_call(LockstepGpuKind kind, const float* from, float* to,
                           std::size_t count);
LockstepGpuCall float_sum(std::vector<float>& memory);  // in place
LockstepGpuCall float_send(const std::vector<float>& memory, int peer);
LockstepGpuCall float_receive(std::vector<float>& memory, int peer);

}  // namespace lockstep
