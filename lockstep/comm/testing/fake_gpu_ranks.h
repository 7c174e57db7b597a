// Ranks on fake GPUs, one a device, all driven by one thread of a test.
//
// Each has a stream and, once asked for, a communicator. Nothing waits: what
// takes looks gets a bounded number of them.
//
// Threads: one at a time.
// Errors:  what the table refuses fails the test.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/testing/fake_gpu.h"

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

  // A communicator of all, or of the first `size`.
  void make_comms() { make_comms(size()); }
  void make_comms(int size);
  LockstepGpuResult create_comm(int rank, int size, const char* id);

  void abort(int rank);
  // Ends a communicator of all in good order.
  void finalize(int rank);
  void destroy(int rank);
  void end_comms();

  // comm_state(), until it is no longer kGpuNotYet or for many looks.
  LockstepGpuResult settle(LockstepGpuComm* comm);

  // The call, started; in a group it is only given.
  LockstepGpuResult call(int rank, const LockstepGpuCall& call);
  LockstepGpuResult call_on(LockstepGpuStream* stream, int rank,
                            const LockstepGpuCall& call);
  void begin_group();
  LockstepGpuResult end_group();

  LockstepGpuEvent* new_event(int rank);
  // A new event, recorded.
  LockstepGpuEvent* record(LockstepGpuStream* stream, int rank);
  void wait(LockstepGpuStream* stream, LockstepGpuEvent* event);
  void copy(void* to, const void* from, std::size_t bytes, int rank);
  // Whether it happens, within many looks.
  bool happens(LockstepGpuEvent* event);
  // Whether all that a rank's stream has been given is done, likewise.
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

// An all_reduce, or the like, of floats.
LockstepGpuCall float_call(LockstepGpuKind kind, const float* from, float* to,
                           std::size_t count);
LockstepGpuCall float_sum(std::vector<float>& memory);  // in place
LockstepGpuCall float_send(const std::vector<float>& memory, int peer);
LockstepGpuCall float_receive(std::vector<float>& memory, int peer);

}  // namespace lockstep
