// All of a FakeGpu except its lock: the functions of gpu_table.h as methods.
//
// Threads: any thread that holds `mutex`; per-thread state is the calling
//          thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/base/mutex.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/fake_gpu/fake_gpu_capture.h"
#include "src/comm/testing/fake_gpu/fake_gpu_comm.h"

namespace lockstep {

// The knowledge of a host thread, as its own actor or shared with all others.
struct FakeHost {
  std::size_t actor = 0;
  VectorClock knows{};
};

// A thread of the host.
struct FakeThread {
  struct Queued {
    LockstepGpuComm* comm = nullptr;
    FakeCall call{};
  };
  std::shared_ptr<FakeHost> host{};
  int device = 0;
  std::string host_name = "fake-host";
  int group_depth = 0;
  std::vector<Queued> group{};
};

// Memory that a communicator accesses without copies.
struct FakeRegistration {
  LockstepGpuComm* comm = nullptr;
  const void* memory = nullptr;
  std::size_t bytes = 0;
};

class FakeGpuState {
 public:
  FakeGpuState(const FakeGpuOptions& options, std::uint64_t seed);

  Mutex mutex;

  FakeOutcome device_count(std::int32_t* count) const;
  FakeOutcome device_name(int device, std::string* name) const;
  FakeOutcome use_device(int device, std::int32_t* previous);

  FakeOutcome stream_create(LockstepGpuStream** stream);
  void stream_destroy(LockstepGpuStream* stream) { streams_.destroy(stream); }
  FakeOutcome stream_wait(LockstepGpuStream* stream, LockstepGpuEvent* event);
  FakeOutcome stream_capture(LockstepGpuStream* stream, std::uint64_t* capture);
  // Whether a graph or a capture uses it.
  bool has_graph_of(LockstepGpuComm* comm);
  void complain(std::string violation) {
    memory_.complain(std::move(violation));
  }
  FakeOutcome event_create(LockstepGpuEvent** event);
  void event_destroy(LockstepGpuEvent* event);
  FakeOutcome event_record(LockstepGpuEvent* event, LockstepGpuStream* stream);
  FakeOutcome event_query(LockstepGpuEvent* event);

  FakeOutcome allocate(void** memory, std::size_t bytes);
  void release(void* memory);
  FakeOutcome copy(const FakeTask& task, LockstepGpuStream* stream);

  FakeOutcome unique_id(char* id);
  FakeOutcome comm_create(const LockstepGpuCommConfig& config,
                          LockstepGpuComm** comm);
  FakeOutcome comm_state(LockstepGpuComm* comm);
  void comm_abort(LockstepGpuComm* comm);
  FakeOutcome comm_finalize(LockstepGpuComm* comm);
  void comm_destroy(LockstepGpuComm* comm);

  FakeOutcome group_begin();
  FakeOutcome group_end();
  FakeOutcome call(LockstepGpuComm* comm, const LockstepGpuCall& call,
                   LockstepGpuStream* stream);

  FakeOutcome register_memory(LockstepGpuComm* comm, void* memory,
                              std::size_t bytes, void** handle);
  void unregister_memory(LockstepGpuComm* comm, void* handle);

  // The methods of FakeGpu.
  void host_uses(const MemoryUse& use);
  void forget(const void* memory, std::size_t bytes) {
    memory_.forget(memory, bytes);
  }
  void hear_from_all_threads();
  bool has_happened(LockstepGpuEvent* event);
  FakeOutcome begin_capture(LockstepGpuStream* stream);
  FakeOutcome end_capture(LockstepGpuStream* stream,
                          std::shared_ptr<FakeCapture>* graph);
  void spoil_capture(LockstepGpuStream* stream, const std::string& why);
  FakeOutcome launch(const FakeCapture& graph, LockstepGpuStream* stream);
  FakeOutcome compute(FakeKernel kernel, LockstepGpuStream* stream);
  bool carry_out_all();
  FakeComms& comms() { return comms_; }
  const std::vector<std::string>& violations() const {
    return memory_.violations();
  }
  FakeGpu::Alive alive() const;
  void fail_device(int device, const std::string& text);
  void set_host(const std::string& host) { thread().host_name = host; }
  void share_bus(int device, int other) { buses_[device] = other; }
  void set_memory(FakeGpu::Memory memory) { enough_ = memory; }
  void lose_driver(const std::string& text) { no_driver_ = text; }
  void show_devices(int devices) { devices_ = devices; }

 private:
  FakeThread& thread();
  FakeTask task(FakeTask::Kind kind, const char* what, const FakeStream& on);
  std::shared_ptr<const std::string> text_of(const char* what,
                                             const std::string& where);
  FakeOutcome check_memory() const;
  void check_device(LockstepGpuComm* comm);
  void note_end(const FakeEnd& end);
  void check_unregistered(const MemoryUse& released);
  FakeOutcome join_capture(const std::shared_ptr<FakeStream>& stream,
                           const FakeMoment& moment);
  void look();
  bool step();
  FakeOutcome start(LockstepGpuComm* comm, std::vector<FakeCall> calls);

  const FakeGpuOptions options_;
  const std::uint64_t number_;  // of this object, in this process
  FakeChance chance_;
  FakeMemory memory_;
  FakeStreams streams_{memory_, chance_};
  FakeComms comms_{memory_, streams_, chance_, options_};
  FakeHandles<LockstepGpuEvent, FakeEvent> events_;
  FakeHandles<void, FakeRegistration> registrations_;
  std::vector<std::shared_ptr<FakeHost>> hosts_;
  std::uint64_t tasks_ = 0;  // given so far
  std::vector<std::weak_ptr<FakeCapture>> captures_;

  int devices_;
  FakeGpu::Memory enough_ = FakeGpu::Memory::kEnough;
  std::string no_driver_;                      // "": the driver works
  std::map<int, std::string> broken_devices_;  // why
  std::map<int, int> buses_;  // by device, if not its own number
};

}  // namespace lockstep
