#include "src/comm/testing/fake_gpu/fake_gpu_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace lockstep {
namespace {

std::atomic<std::uint64_t> made{0};

const char* name_of(LockstepGpuKind kind) {
  switch (kind) {
    case kGpuAllReduce:
      return "all_reduce";
    case kGpuBroadcast:
      return "broadcast";
    case kGpuReduce:
      return "reduce";
    case kGpuAllGather:
      return "all_gather";
    case kGpuReduceScatter:
      return "reduce_scatter";
    case kGpuSend:
      return "send";
    case kGpuReceive:
      return "receive";
  }
  return "call";
}

}  // namespace

FakeGpuState::FakeGpuState(const FakeGpuOptions& options, std::uint64_t seed)
    : options_(options),
      number_(++made),
      chance_(seed),
      devices_(options.devices) {}

FakeThread& FakeGpuState::thread() {
  struct Mine {
    std::uint64_t number = 0;
    FakeThread thread{};
  };
  thread_local Mine mine;
  if (mine.number == number_) return mine.thread;
  mine = {number_, {}};
  using Threads = FakeGpuOptions::Threads;
  if (hosts_.empty() || options_.threads == Threads::kKnowWhatTheySaw) {
    hosts_.push_back(std::make_shared<FakeHost>());
    hosts_.back()->actor = memory_.new_actor();
    hosts_.back()->knows.tick(hosts_.back()->actor);
  }
  mine.thread.host = hosts_.back();
  return mine.thread;
}

std::shared_ptr<const std::string> FakeGpuState::text_of(
    const char* what, const std::string& where) {
  return std::make_shared<std::string>(
      fmt::format("{} (task {}) on {}", what, ++tasks_, where));
}

FakeTask FakeGpuState::task(FakeTask::Kind kind, const char* what,
                            const FakeStream& on) {
  FakeTask task;
  task.kind = kind;
  task.text = text_of(what, on.name());
  task.host = thread().host->knows;
  task.due = chance_.draw_due();
  return task;
}

FakeOutcome FakeGpuState::check_memory() const {
  if (enough_ == FakeGpu::Memory::kNone) return {kGpuNoMemory, "out of memory"};
  return {};
}

bool FakeGpuState::step() {
  // Either may come first.
  if (chance_.one_in(2)) return streams_.step() || comms_.step();
  return comms_.step() || streams_.step();
}

void FakeGpuState::look() {
  chance_.count_look();
  std::size_t steps = chance_.one_in(4) ? 64 : chance_.below(6);
  while (steps != 0 && step()) --steps;
}

bool FakeGpuState::carry_out_all() {
  chance_.begin_patience();
  while (step()) {
  }
  chance_.end_patience();
  return streams_.all_done() && comms_.all_started();
}

FakeOutcome FakeGpuState::device_count(std::int32_t* count) const {
  *count = 0;
  if (!no_driver_.empty()) return {kGpuNoDriver, no_driver_};
  *count = devices_;
  return {};
}

FakeOutcome FakeGpuState::device_name(int device, std::string* name) const {
  if (device < 0 || device >= devices_)
    return {kGpuMisuse, fmt::format("there is no device {}", device)};
  *name = fmt::format("GPU-fake-{}", device);
  return {};
}

FakeOutcome FakeGpuState::use_device(int device, std::int32_t* previous) {
  if (device < 0 || device >= devices_)
    return {kGpuMisuse, fmt::format("there is no device {}", device)};
  if (previous != nullptr) *previous = thread().device;
  thread().device = device;
  return {};
}

FakeOutcome FakeGpuState::stream_create(LockstepGpuStream** stream) {
  FakeOutcome outcome = check_memory();
  if (outcome.result == kGpuDone) *stream = streams_.create(thread().device);
  return outcome;
}

FakeOutcome FakeGpuState::stream_wait(LockstepGpuStream* handle,
                                      LockstepGpuEvent* event_handle) {
  const auto stream = streams_.find(handle, thread().device);
  const auto event = events_.find(event_handle);
  if (!event) memory_.complain("an event is used that does not exist");
  if (!stream || !event) return {kGpuMisuse, "invalid resource handle"};
  if (!event->moment) return {};
  if (FakeOutcome joined = join_capture(stream, *event->moment);
      joined.result != kGpuDone)
    return joined;
  FakeTask wait = task(FakeTask::Kind::kWait, "wait", *stream);
  wait.moment = event->moment;
  streams_.give(*stream, std::move(wait));
  return {};
}

FakeOutcome FakeGpuState::event_create(LockstepGpuEvent** event) {
  FakeOutcome outcome = check_memory();
  if (outcome.result != kGpuDone) return outcome;
  auto made_event = std::make_shared<FakeEvent>();
  made_event->device = thread().device;
  *event = events_.add(std::move(made_event));
  return outcome;
}

void FakeGpuState::event_destroy(LockstepGpuEvent* event) {
  if (!events_.take(event))
    memory_.complain("an event is destroyed that does not exist");
}

FakeOutcome FakeGpuState::event_record(LockstepGpuEvent* event_handle,
                                       LockstepGpuStream* handle) {
  const auto stream = streams_.find(handle, thread().device);
  const auto event = events_.find(event_handle);
  if (!event) memory_.complain("an event is used that does not exist");
  if (!stream || !event) return {kGpuMisuse, "invalid resource handle"};
  if (stream->device != event->device)
    return {kGpuMisuse, fmt::format("an event of device {} is recorded on {}",
                                    event->device, stream->name())};
  FakeTask record = task(FakeTask::Kind::kRecord, "record", *stream);
  record.moment = event->moment = std::make_shared<FakeMoment>();
  streams_.give(*stream, std::move(record));
  return {};
}

FakeOutcome FakeGpuState::event_query(LockstepGpuEvent* handle) {
  const auto event = events_.find(handle);
  if (!event) {
    memory_.complain("an event is used that does not exist");
    return {kGpuMisuse, "invalid resource handle"};
  }
  const auto broken = broken_devices_.find(event->device);
  if (broken != broken_devices_.end()) return {kGpuFailed, broken->second};
  if (event->moment && event->moment->is_captured)
    return {kGpuSpoiltCapture, "the event was recorded in a capture"};
  const bool happened = !event->moment || event->moment->happened;
  if (happened && event->moment)
    thread().host->knows.join(event->moment->knows);
  look();
  return {happened ? kGpuDone : kGpuNotYet};
}

bool FakeGpuState::has_happened(LockstepGpuEvent* handle) {
  const auto event = events_.find(handle);
  look();
  return event && event->moment && event->moment->happened;
}

FakeOutcome FakeGpuState::allocate(void** memory, std::size_t bytes) {
  FakeOutcome outcome = check_memory();
  if (outcome.result != kGpuDone) return outcome;
  *memory = memory_.allocate(bytes, thread().device);
  if (*memory == nullptr) return {kGpuNoMemory, "out of memory"};
  return outcome;
}

void FakeGpuState::release(void* memory) {
  if (memory == nullptr) return;
  const MemoryUse all{MemoryUse::Kind::kWrites, memory,
                      memory_.bytes_of(memory)};
  host_uses(all);
  check_unregistered(all);
  if (!memory_.release(memory))
    memory_.complain("memory is released that was not allocated");
}

FakeOutcome FakeGpuState::copy(const FakeTask& what,
                               LockstepGpuStream* handle) {
  const auto stream = streams_.find(handle, thread().device);
  if (!stream) return {kGpuMisuse, "invalid resource handle"};
  if (what.bytes != 0 && (what.to == nullptr || what.from == nullptr))
    return {kGpuMisuse, "memory is null"};
  FakeTask copy = task(FakeTask::Kind::kCopy, "copy", *stream);
  copy.to = what.to;
  copy.from = what.from;
  copy.bytes = what.bytes;
  streams_.give(*stream, std::move(copy));
  return {};
}

FakeOutcome FakeGpuState::unique_id(char* id) {
  const std::string text = comms_.new_id();
  std::copy(text.begin(), text.end(), id);
  return {};
}

FakeOutcome FakeGpuState::comm_create(const LockstepGpuCommConfig& config,
                                      LockstepGpuComm** comm) {
  const int device = thread().device;
  const auto bus = buses_.find(device);
  return comms_.create(
      config,
      {device, bus == buses_.end() ? device : bus->second, thread().host_name},
      comm);
}

FakeOutcome FakeGpuState::comm_state(LockstepGpuComm* comm) {
  FakeOutcome outcome = comms_.state(comm);
  look();
  return outcome;
}

void FakeGpuState::comm_abort(LockstepGpuComm* comm) {
  check_device(comm);
  note_end(comms_.abort(comm));
}

FakeOutcome FakeGpuState::comm_finalize(LockstepGpuComm* comm) {
  if (has_graph_of(comm))
    complain("a communicator is finalized before a graph that uses it");
  return comms_.finalize(comm);
}

void FakeGpuState::comm_destroy(LockstepGpuComm* comm) {
  check_device(comm);
  note_end(comms_.destroy(comm));
}

// NCCL restores the thread's device at the end, which makes a context.
void FakeGpuState::check_device(LockstepGpuComm* handle) {
  const auto comm = comms_.find(handle);
  if (comm && comm->device != thread().device)
    complain(fmt::format(
        "a communicator of device {} is ended by a thread that uses "
        "device {}",
        comm->device, thread().device));
}

FakeOutcome FakeGpuState::group_begin() {
  ++thread().group_depth;
  return {};
}

FakeOutcome FakeGpuState::group_end() {
  FakeThread& mine = thread();
  if (mine.group_depth == 0) return {kGpuMisuse, "there is no group to end"};
  if (--mine.group_depth != 0) return {};
  std::vector<LockstepGpuComm*> order;
  std::map<LockstepGpuComm*, std::vector<FakeCall>> calls;
  for (auto& queued : std::exchange(mine.group, {})) {
    if (!calls.contains(queued.comm)) order.push_back(queued.comm);
    calls[queued.comm].push_back(std::move(queued.call));
  }
  FakeOutcome all;
  for (LockstepGpuComm* comm : order) {
    FakeOutcome one = start(comm, std::move(calls[comm]));
    if (one.result == kGpuDone) continue;
    // An error takes precedence over kGpuNotYet.
    if (all.result == kGpuDone || all.result == kGpuNotYet)
      all = std::move(one);
  }
  return all;
}

FakeOutcome FakeGpuState::start(LockstepGpuComm* handle,
                                std::vector<FakeCall> calls) {
  const auto comm = comms_.find(handle);
  if (!comm) return {kGpuMisuse, "the communicator has ended"};
  FakeOutcome ready = comms_.check_ready(*comm);
  if (ready.result != kGpuDone) return ready;
  return comms_.start(*comm, std::move(calls), thread().host->knows);
}

FakeOutcome FakeGpuState::call(LockstepGpuComm* handle,
                               const LockstepGpuCall& call,
                               LockstepGpuStream* stream_handle) {
  const auto comm = comms_.find(handle);
  if (!comm) return {kGpuMisuse, "the communicator has ended"};
  FakeOutcome ready = comms_.check_ready(*comm);
  if (ready.result != kGpuDone) return ready;
  const auto stream = streams_.find(stream_handle, thread().device);
  if (!stream) return {kGpuMisuse, "invalid resource handle"};
  if (stream->device != comm->device)
    return {kGpuMisuse, fmt::format("a communicator of device {} is given {}",
                                    comm->device, stream->name())};
  const int size = static_cast<int>(comm->clique->ranks.size());
  if (std::string wrong = what_is_wrong(call, size); !wrong.empty())
    return {kGpuMisuse, std::move(wrong)};
  FakeCall made_call;
  made_call.call = call;
  made_call.stream = stream;
  made_call.rank = comm->rank;
  made_call.size = size;
  made_call.text = text_of(name_of(call.kind), stream->name());
  if (thread().group_depth == 0) return start(handle, {made_call});
  thread().group.push_back({handle, std::move(made_call)});
  return {};
}

}  // namespace lockstep
