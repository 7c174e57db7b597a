#include "src/comm/testing/fake_gpu/fake_gpu_table.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Result = LockstepGpuResult;
using Outcome = LockstepGpuOutcome;
using Stream = LockstepGpuStream;
using Event = LockstepGpuEvent;
using Comm = LockstepGpuComm;

std::atomic<FakeGpuState*> current{nullptr};

FakeGpuState& state() {
  FakeGpuState* it = current.load();
  LOCKSTEP_CHECK(it != nullptr, "the test's FakeGpu has ended");
  return *it;
}

void write_text(const std::string& text, char* to, std::size_t bytes) {
  if (bytes == 0) return;
  *std::copy_n(text.begin(), std::min(text.size(), bytes - 1), to) = '\0';
}

// Calls a method of the state with its lock held.
template <typename Method, typename... Arguments>
Result locked(Outcome* outcome, Method method, Arguments... arguments) {
  FakeGpuState& s = state();
  const MutexLock lock(s.mutex);
  const FakeOutcome its = (s.*method)(arguments...);
  if (outcome != nullptr)
    write_text(its.text, outcome->text, sizeof outcome->text);
  return its.result;
}

template <typename Method, typename... Arguments>
void locked_void(Method method, Arguments... arguments) {
  FakeGpuState& s = state();
  const MutexLock lock(s.mutex);
  (s.*method)(arguments...);
}

Result device_count(std::int32_t* count, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::device_count, count);
}
Result device_name(std::int32_t device, char* text, std::size_t bytes,
                   Outcome* outcome) {
  std::string name;
  const Result result =
      locked(outcome, &FakeGpuState::device_name, device, &name);
  write_text(name, text, bytes);
  return result;
}
Result use_device(std::int32_t device, std::int32_t* previous,
                  Outcome* outcome) {
  return locked(outcome, &FakeGpuState::use_device, device, previous);
}

Result stream_create(Stream** stream, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::stream_create, stream);
}
void stream_destroy(Stream* stream) {
  locked_void(&FakeGpuState::stream_destroy, stream);
}
Result stream_wait(Stream* stream, Event* event, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::stream_wait, stream, event);
}
Result stream_capture(Stream* stream, std::uint64_t* capture,
                      Outcome* outcome) {
  return locked(outcome, &FakeGpuState::stream_capture, stream, capture);
}
Result event_create(Event** event, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::event_create, event);
}
void event_destroy(Event* event) {
  locked_void(&FakeGpuState::event_destroy, event);
}
Result event_record(Event* event, Stream* stream, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::event_record, event, stream);
}
Result event_query(Event* event, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::event_query, event);
}

Result allocate(void** memory, std::size_t bytes, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::allocate, memory, bytes);
}
void release(void* memory) { locked_void(&FakeGpuState::release, memory); }
Result copy(void* to, const void* from, std::size_t bytes, Stream* stream,
            Outcome* outcome) {
  FakeTask task;
  task.to = to;
  task.from = from;
  task.bytes = bytes;
  return locked(outcome, &FakeGpuState::copy, task, stream);
}

Result unique_id(char* id, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::unique_id, id);
}
Result comm_create(const LockstepGpuCommConfig* config, Comm** comm,
                   Outcome* outcome) {
  return locked(outcome, &FakeGpuState::comm_create, *config, comm);
}
Result comm_state(Comm* comm, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::comm_state, comm);
}

// Like NCCL, which would wait for the graphs for ever.
void comm_abort(Comm* comm) {
  constexpr std::chrono::minutes kWithoutEnd{1};
  const Deadline deadline(kWithoutEnd);
  FakeGpuState& s = state();
  MutexLock lock(s.mutex);
  while (s.has_graph_of(comm)) {
    if (deadline.expired()) {
      s.complain("a communicator is aborted that a graph uses");
      break;
    }
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  s.comm_abort(comm);
}
Result comm_finalize(Comm* comm, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::comm_finalize, comm);
}
void comm_destroy(Comm* comm) {
  locked_void(&FakeGpuState::comm_destroy, comm);
}

Result group_begin(Outcome* outcome) {
  return locked(outcome, &FakeGpuState::group_begin);
}
Result group_end(Outcome* outcome) {
  return locked(outcome, &FakeGpuState::group_end);
}
Result call(Comm* comm, const LockstepGpuCall* call, Stream* stream,
            Outcome* outcome) {
  return locked(outcome, &FakeGpuState::call, comm, *call, stream);
}

Result register_memory(Comm* comm, void* memory, std::size_t bytes,
                       void** handle, Outcome* outcome) {
  return locked(outcome, &FakeGpuState::register_memory, comm, memory, bytes,
                handle);
}
void unregister_memory(Comm* comm, void* handle) {
  locked_void(&FakeGpuState::unregister_memory, comm, handle);
}

constexpr LockstepGpuTable kTable{
    .version = kGpuTableVersion,
    .libraries = "FakeGpu",
    .device_count = device_count,
    .device_name = device_name,
    .use_device = use_device,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_wait = stream_wait,
    .stream_capture = stream_capture,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .allocate = allocate,
    .release = release,
    .copy = copy,
    .unique_id = unique_id,
    .comm_create = comm_create,
    .comm_state = comm_state,
    .comm_abort = comm_abort,
    .comm_finalize = comm_finalize,
    .comm_destroy = comm_destroy,
    .group_begin = group_begin,
    .group_end = group_end,
    .call = call,
    .register_memory = register_memory,
    .unregister_memory = unregister_memory,
};

}  // namespace

void set_current_fake_gpu(FakeGpuState* state) {
  FakeGpuState* before = current.exchange(state);
  LOCKSTEP_CHECK((before == nullptr) != (state == nullptr),
                 "there is another FakeGpu");
}

const LockstepGpuTable& fake_gpu_table() { return kTable; }

}  // namespace lockstep
