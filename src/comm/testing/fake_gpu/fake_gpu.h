// Simulates several GPUs of one host: tests use it instead of CUDA and NCCL,
// for ranks that are threads of one process.
//
// Every task runs late. The fake runs tasks of a stream when a thread polls it
// (event_query(), comm_state()): a few tasks at a time, drawn at random from
// all streams, and some only after several polls. The start of a communicator's
// calls is itself late (kGpuNotYet), except with a single rank: the calls are
// in no stream before comm_state() says done. So code that forgets to wait
// fails, and a seed reproduces the failure. A call that never ends on GPUs (a
// collective whose ranks differ, or with a dead rank) never ends here.
//
// It models NCCL 2.28.9 as its sources show it: when starts are late, what one
// rank's abort leaves to the last rank of the process, which device an end
// restores, and which ranks count as sharing a GPU. Change it only when those
// sources or a real GPU behave differently.
//
// It also finds races that did no harm: it records the last read and write of
// every piece of memory, and vector clocks tell whether streams, events and
// polls order them before the next use. An unordered use is a violation.
//
// A wrong registration is a violation too: memory that is released while
// registered, unregistered while a call uses it, or registered twice.
//
// Device memory is host memory, from the table or any other (a test's
// std::vector). Memory that the table releases is not reused for long, so that
// its use is detected. All calls of the table go to the one existing FakeGpu.
//
// Threads: any thread may call every method; the destructor must run when no
//          other thread uses the object or its table. Two FakeGpus at a time
//          are a bug in the test.
// Errors:  those of gpu_table.h. Misuse that the table cannot report (void
//          functions, ended handles) is a violation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/nccl/gpu_table.h"

namespace lockstep {

class FakeCapture;
class FakeGpuState;
struct FakeKernel;

struct FakeGpuOptions {
  int devices = 2;
  // The seed of all random choices; by default LOCKSTEP_TEST_SEED or a random
  // one. It is printed if the test fails.
  std::optional<std::uint64_t> seed{};

  // The effect of a collective or message for which the ranks pass different
  // kinds, counts, types, reductions or roots.
  enum class Mismatch { kHangs, kWritesGarbage };
  Mismatch mismatch = Mismatch::kHangs;

  // Whether a thread knows that an event has happened only if it polled the
  // event itself, or also if another thread did: for code whose threads
  // synchronise in ways that the fake cannot see.
  enum class Threads { kKnowWhatTheySaw, kKnowWhatAnySaw };
  Threads threads = Threads::kKnowWhatTheySaw;
};

class FakeGpu {
 public:
  // From now on table() refers to this object.
  explicit FakeGpu(const FakeGpuOptions& options = {});
  // Drops all remaining tasks.
  ~FakeGpu();
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  const LockstepGpuTable& table() const;
  std::uint64_t seed() const { return seed_; }

  // The violations so far, one sentence each. Two unordered uses are detected
  // when the second runs: see carry_out_all().
  std::vector<std::string> violations() const;

  // The calling thread is about to read or write memory itself.
  void host_reads(const void* memory, std::size_t bytes);
  void host_writes(const void* memory, std::size_t bytes);
  // The memory has been freed (a std::vector has ended): forgets its earlier
  // uses, so that they do not conflict with the next owner's.
  void forget(const void* memory, std::size_t bytes);
  // From now on the calling thread knows what any thread has seen so far, as
  // after joining them.
  void hear_from_all_threads();

  // Like event_query(), except that the calling thread gains no knowledge of
  // what happened.
  bool has_happened(LockstepGpuEvent* event);

  // Captures a stream of the calling thread's device, as a tensor library does:
  // tasks given between the two calls to the stream, and to streams that wait
  // for its events, do not run. Returns their graph, or null with the reason in
  // `why`.
  void begin_capture(LockstepGpuStream* stream);
  std::shared_ptr<FakeCapture> end_capture(LockstepGpuStream* stream,
                                           std::string* why);
  // Invalidates the capture, as a call that cannot be captured does; no effect
  // outside of a capture.
  void spoil_capture(LockstepGpuStream* stream, const std::string& why);
  // Launches the captured tasks on `stream`.
  void launch(const FakeCapture& graph, LockstepGpuStream* stream);
  // Runs a kernel on the device, in the stream's order.
  void compute(FakeKernel kernel, LockstepGpuStream* stream);

  // Runs all tasks that can run, as if polled without end. Returns whether all
  // streams are empty.
  bool carry_out_all();

  // Soon comm_state() of `comm`, or of all communicators of `device`, returns
  // `result` (kGpuPeerLost, kGpuFailed), and their calls make no more progress.
  void fail_comm(LockstepGpuComm* comm, LockstepGpuResult result,
                 const std::string& text);
  void fail_comms_of(int device, LockstepGpuResult result,
                     const std::string& text);
  // event_query() returns kGpuFailed for the device's events.
  void fail_device(int device, const std::string& text);
  // As if the device's process were dead: its communicators begin no more
  // calls, and its ranks join no communicator.
  void kill(int device);

  // NCCL refuses two ranks of one host whose devices have the same bus id,
  // regardless of the devices' names. Like NCCL_HOSTID in the calling thread's
  // process: sets the host of communicators that it makes from now on.
  void set_host(const std::string& host);
  // Simulates slices of one GPU: `device` gets the bus id of `other`.
  void share_bus(int device, int other);

  // Whether allocate(), stream_create() and event_create() find memory.
  enum class Memory { kEnough, kNone };
  void set_memory(Memory memory);
  // From now on device_count() returns kGpuNoDriver, with `text`.
  void lose_driver(const std::string& text);
  // From now on device_count() returns `devices`, at most the number in the
  // options.
  void show_devices(int devices);

  // The numbers of objects that exist.
  struct Alive {
    std::size_t streams = 0;
    std::size_t events = 0;
    std::size_t comms = 0;
    std::size_t allocations = 0;
    std::size_t registrations = 0;
    friend bool operator==(const Alive&, const Alive&) = default;
  };
  Alive alive() const;

 private:
  const std::uint64_t seed_;
  std::unique_ptr<FakeGpuState> state_;
};

}  // namespace lockstep
