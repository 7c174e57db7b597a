// Several GPUs of one host that are not there: what tests put in the place of
// CUDA and NCCL, for ranks that are threads of one process.
//
// Everything is done late. What is given to a stream is carried out when
// somebody looks at it (event_query(), comm_state()): a few pieces at a time,
// drawn by chance from all streams, and some only after several looks. The
// start of a communicator's calls is itself late (kGpuNotYet), but for one of a
// single rank: they are in no stream before comm_state() says done. So code
// that forgets to wait fails, and a seed repeats how. What never ends on GPUs
// (a collective whose ranks differ, one with a rank that is dead) never ends
// here.
//
// What it takes from NCCL's sources is version 2.28.9's: when starts are late,
// what an abort of one rank leaves to the last of the process, the device that
// an end sets back, and which ranks have one GPU. It changes only where those
// sources, or a real GPU, are seen to do something else.
//
// What happens to have gone well is found too: of every piece of memory it is
// known who read or wrote it last, and vector clocks tell whether streams,
// events and looks order that before the next use. What they do not is a
// violation.
//
// So is what is registered and should not be any more, or not yet: memory that
// is released before, or unregistered while a call uses it, or registered
// twice.
//
// Device memory is the host's, the table's or any other (a test's std::vector).
// What the table releases is given to nobody for long, so that its use is
// found. All calls of the table go to the one FakeGpu that there is.
//
// Threads: every method from any thread; the destructor when no other thread
//          uses it or its table any more. Two at a time are a bug in the test.
// Errors:  those of gpu_table.h. Misuse that the table cannot tell of (void
//          functions, handles that are no more) is a violation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/nccl/gpu_table.h"

namespace lockstep {

class FakeCapture;
class FakeGpuState;
struct FakeKernel;

struct FakeGpuOptions {
  int devices = 2;
  // Of all that is left to chance; if not given, LOCKSTEP_TEST_SEED or by
  // chance. It is printed when the test has failed.
  std::optional<std::uint64_t> seed{};

  // What becomes of a collective, or a message, of which the ranks give
  // different kinds, counts, types, reductions or roots.
  enum class Mismatch { kHangs, kWritesGarbage };
  Mismatch mismatch = Mismatch::kHangs;

  // Whether a thread knows that an event has happened only when it has looked
  // itself, or also when another thread has: for code whose threads tell each
  // other in ways that are not seen here.
  enum class Threads { kKnowWhatTheySaw, kKnowWhatAnySaw };
  Threads threads = Threads::kKnowWhatTheySaw;
};

class FakeGpu {
 public:
  // Becomes what table() is about.
  explicit FakeGpu(const FakeGpuOptions& options = {});
  // Drops all that is left.
  ~FakeGpu();
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  const LockstepGpuTable& table() const;
  std::uint64_t seed() const { return seed_; }

  // What was wrong up to now, a sentence each. Of two unordered uses it is
  // known when the second is carried out: see carry_out_all().
  std::vector<std::string> violations() const;

  // The calling thread is about to use memory itself.
  void host_reads(const void* memory, std::size_t bytes);
  void host_writes(const void* memory, std::size_t bytes);
  // It is no longer the memory that it was (a std::vector has ended): what used
  // it is no matter to those who get it next.
  void forget(const void* memory, std::size_t bytes);
  // The calling thread knows from now on what any thread has seen so far, as
  // after joining them.
  void hear_from_all_threads();

  // As event_query(), by somebody who tells nobody: what happened is as little
  // known to the calling thread as before.
  bool has_happened(LockstepGpuEvent* event);

  // Of a stream of the calling thread's device, as the library of tensors does
  // it: what the stream is given between the two, and those that wait for its
  // events, is not carried out. The graph of it, or null, with `why` not.
  void begin_capture(LockstepGpuStream* stream);
  std::shared_ptr<FakeCapture> end_capture(LockstepGpuStream* stream,
                                           std::string* why);
  // As after a call that no capture survives; nothing outside of one.
  void spoil_capture(LockstepGpuStream* stream, const std::string& why);
  // Gives `stream` what was captured.
  void launch(const FakeCapture& graph, LockstepGpuStream* stream);
  // Has the device compute, in the stream's order, what only it may read then.
  void compute(FakeKernel kernel, LockstepGpuStream* stream);

  // Carries out whatever can be, as if looked at without end. Whether all that
  // was given to streams is done.
  bool carry_out_all();

  // comm_state() of `comm`, or of all that `device` has now, soon says `result`
  // (kGpuPeerLost, kGpuFailed), and its calls get no further.
  void fail_comm(LockstepGpuComm* comm, LockstepGpuResult result,
                 const std::string& text);
  void fail_comms_of(int device, LockstepGpuResult result,
                     const std::string& text);
  // event_query() says kGpuFailed of the device's events.
  void fail_device(int device, const std::string& text);
  // As if its process were dead: no call of its communicators begins any more,
  // and none of its ranks joins one.
  void kill(int device);

  // NCCL refuses two ranks of one host whose devices have one bus id, whatever
  // the devices' names. As NCCL_HOSTID of the calling thread's process: the
  // host of what it makes from now on.
  void set_host(const std::string& host);
  // Slices of one GPU: `device` gets the bus id of `other`.
  void share_bus(int device, int other);

  // Whether allocate(), stream_create() and event_create() find memory.
  enum class Memory { kEnough, kNone };
  void set_memory(Memory memory);
  // From now on device_count() says kGpuNoDriver, with `text`.
  void lose_driver(const std::string& text);
  // From now on device_count() gives `devices`; no more than the options'.
  void show_devices(int devices);

  // What was made and not yet ended.
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
