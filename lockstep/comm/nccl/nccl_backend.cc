#include "lockstep/comm/nccl/nccl_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/current_stream.h"
#include "lockstep/comm/nccl/attached_graphs.h"
#include "lockstep/comm/nccl/control_calls.h"
#include "lockstep/comm/nccl/gpu_memory.h"
#include "lockstep/comm/nccl/gpu_plugin.h"
#include "lockstep/comm/nccl/nccl_calls.h"
#include "lockstep/comm/nccl/nccl_errors.h"
#include "lockstep/comm/nccl/nccl_flight.h"
#include "lockstep/comm/nccl/nccl_meeting.h"
#include "lockstep/comm/nccl/pair_lines.h"
#include "lockstep/comm/recorder.h"
#include "lockstep/comm/registry.h"
#include "lockstep/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

// How long the group's thread pauses between two looks, at first and at last.
constexpr microseconds kShortestPause = 20us;
constexpr microseconds kLongestPause = 2ms;
// How often it looks whether somebody is gone; between hosts that asks the
// store.
constexpr auto kLookAround = 50ms;
// How often start() looks whether NCCL has launched an operation, before it
// leaves that to whoever waits.
constexpr int kLooksInStart = 200;
// How long a group that is left waits for what every rank has called, and for
// the other ranks, which may still read what this one has sent.
constexpr auto kGoodbye = 1s;

// How long who waits is kept from an error, until the lines are aborted: only a
// device that does not answer takes longer.
constexpr auto kAbortTakes = 10s;
// Of operations that were started when all was over.
constexpr std::uint64_t kFailedTicket = 0;

class NcclBackend : public Backend,
                    public PendingWork,
                    public std::enable_shared_from_this<NcclBackend> {
 public:
  // `line` is one of all ranks, and `control` their group of the CPU; null in a
  // group of one.
  NcclBackend(const Gpu& gpu, const GroupIdentity& identity,
              std::unique_ptr<GpuLine> line, std::shared_ptr<Backend> control,
              std::shared_ptr<GpuMemory> memory)
      : gpu_(gpu),
        identity_(identity),
        control_(std::move(control)),
        memory_(std::move(memory)),
        collectives_(identity.rank, identity.size, memory_) {
    collectives_.set_line(std::move(line));
    if (control_) messages_.emplace(gpu_, identity_, *control_);
    watch_ = std::thread([this] { watch(); });
    memory_->serve([this] {
      MutexLock lock(mutex_);
      changed_.notify_all();
    });
  }
  ~NcclBackend() override;

  std::string_view name() const override { return "nccl"; }
  bool supports(const Operation& operation) const override {
    return nccl_supports(operation);
  }
  Work start(const Operation& operation) override;
  void abort(std::string_view reason) noexcept override;
  void look_around() override {
    if (control_) control_->look_around();
  }
  void attach(const std::shared_ptr<CapturedGraph>& graph,
              void* stream) override;

  void wait(std::uint64_t ticket, std::optional<Deadline> deadline) override {
    hold_up(ticket, nullptr, deadline);
  }
  void order_before(std::uint64_t ticket, void* stream) override {
    auto* const held_up = static_cast<LockstepGpuStream*>(stream);
    hold_up(ticket, &held_up, std::nullopt);
  }
  void synchronize(std::uint64_t ticket,
                   std::optional<Deadline> deadline) override;
  bool completes_in_wait() const override { return false; }
  bool done(std::uint64_t ticket) override;
  std::vector<int> missing(std::uint64_t ticket) override;

 private:
  using Pointer = std::shared_ptr<NcclFlight>;

  Pointer make_flight(const Operation& operation) LOCKSTEP_REQUIRES(mutex_);
  void check_graph(const NcclFlight& flight) const LOCKSTEP_REQUIRES(mutex_);
  void launch(const Pointer& flight) LOCKSTEP_REQUIRES(mutex_);
  // Returns when it is in its capture, or the group has failed.
  void capture(const Pointer& flight, MutexLock& lock)
      LOCKSTEP_REQUIRES(mutex_);
  // Lets `stream`, or the flight's caller's, wait for the flight.
  void hold_up(std::uint64_t ticket, LockstepGpuStream* const* stream,
               std::optional<Deadline> deadline);
  // Null once it is complete; throws when the group has failed, and nothing
  // touches the memory of operations any more.
  Pointer find(std::uint64_t ticket, MutexLock& lock) LOCKSTEP_REQUIRES(mutex_);
  // Gives up on `flight` if its deadline, or `limit`, has passed; otherwise
  // waits a moment, or until something has changed.
  void pause(MutexLock& lock, const NcclFlight& flight,
             std::optional<Deadline> limit) LOCKSTEP_REQUIRES(mutex_);

  void watch();
  // Waits for something to do, and frees memory meanwhile.
  void idle(MutexLock& lock) LOCKSTEP_REQUIRES(mutex_);
  void free_memory() LOCKSTEP_REQUIRES(mutex_);
  // Looks whether somebody is gone, with `lock` released meanwhile.
  void look_around_now_and_then(MutexLock& lock) LOCKSTEP_REQUIRES(mutex_);
  // Carries on what is in flight; whether something was launched or completed.
  bool look() LOCKSTEP_REQUIRES(mutex_);
  bool all_launched() LOCKSTEP_REQUIRES(mutex_);
  bool complete_what_is_done() LOCKSTEP_REQUIRES(mutex_);
  bool is_done(NcclFlight& flight) const;
  void check_deadlines() LOCKSTEP_REQUIRES(mutex_);
  // Ends the group because of `error`, which `operation` met, if one did.
  void fail(std::exception_ptr error, const Operation* operation) noexcept
      LOCKSTEP_REQUIRES(mutex_);
  GpuPlace place() const { return {identity_, gpu_.index()}; }
  void abort_lines() noexcept;
  void await_graphs() noexcept;
  // By the group of the CPU's collective of this number.
  void say_goodbye(ControlSequence number, Deadline deadline) noexcept;

  const Gpu gpu_;
  const GroupIdentity identity_;
  const std::shared_ptr<Backend> control_;
  const std::shared_ptr<GpuMemory> memory_;

  Mutex mutex_;
  std::condition_variable_any changed_;
  // In the order in which they were started. Before the lines, which carry them
  // out, and after the group of the CPU, which writes to them.
  std::map<std::uint64_t, Pointer> flights_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  ControlSequence control_sequence_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  AttachedGraphs graphs_;  // as the lines, below
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
  bool lines_aborted_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // after an error
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Used under the lock until there is an error, and then by the group's thread
  // alone, which aborts them: that may take long.
  LaunchQueue collectives_;
  std::optional<PairLines> messages_;
  Deadline::Clock::time_point next_look_around_{};  // the thread's
  std::thread watch_;
};

NcclBackend::~NcclBackend() {
  const Deadline goodbye(kGoodbye);
  bool failed = false;
  ControlSequence last = 0;
  {
    MutexLock lock(mutex_);
    while (!flights_.empty() && !error_ && !goodbye.expired())
      changed_.wait_until(lock, goodbye.when());
    if (!flights_.empty() && !error_)
      fail(std::make_exception_ptr(
               Error("it left the group with operations in flight")),
           nullptr);
    failed = error_ != nullptr;
    last = control_sequence_ + 1;
    stopping_ = true;
    changed_.notify_all();
  }
  watch_.join();
  if (!failed) say_goodbye(last, goodbye);
  graphs_.end();
  collectives_.set_line(nullptr);
  memory_->line_ended();
  if (!failed) return;
  for (const auto& [ticket, flight] : flights_)
    if (flight->check) flight->check->settle();
  if (messages_) messages_->settle();
}

// An operation that is done here may still be read from by a peer, which the
// end of the communicator would cut off.
void NcclBackend::say_goodbye(ControlSequence number,
                              Deadline deadline) noexcept try {
  if (!control_) return;
  const Work barrier = control_->start({.kind = OperationKind::kBarrier,
                                        .sequence = number,
                                        .timeout = kNoDeadline,
                                        .place = "leaving the group"});
  Backoff backoff(1ms, 20ms);
  while (!barrier.done())
    if (backoff.wait(deadline) == WaitResult::kTimedOut) return;
} catch (const std::exception&) {
  // Somebody else has left already, or gave up.
}

// A replay wants a graph of this group's, and a capture a collective.
void NcclBackend::check_graph(const NcclFlight& flight) const {
  if (flight.graph && !graphs_.has(flight.graph.get()))
    throw InvalidArgument(
        "the graph has no operations of this group, or those of a group that "
        "is no more\n  next:    attach() it to the group that is to replay it, "
        "before its capture ends");
  if (flight.capture != 0 &&
      (flight.graph || is_point_to_point(flight.operation.kind)))
    throw InvalidArgument(
        "only collectives can be captured\n  next:    send and receive, and "
        "replay other graphs, outside of what is captured");
}

NcclBackend::Pointer NcclBackend::make_flight(const Operation& operation) {
  const Device device = device_of(operation);
  if (device.index != gpu_.index())
    throw InvalidArgument(fmt::format(
        "its buffers are on GPU {}, but the group has used GPU {} on this "
        "rank\n  next:    use one device a rank, or a group for each",
        device.index, gpu_.index()));
  auto flight = std::make_shared<NcclFlight>(operation, gpu_);
  check_graph(*flight);
  flight->ticket = ++started_;
  flight->begins.record(flight->caller());
  if (control_)
    flight->check.emplace(flight->operation, *control_, identity_.size,
                          control_sequence_);
  flights_.emplace(flight->ticket, flight);
  return flight;
}

Work NcclBackend::start(const Operation& operation) {
  MutexLock lock(mutex_);
  if (error_) return Work(shared_from_this(), kFailedTicket);
  try {
    const GpuScope scope(gpu_);
    const Pointer flight = make_flight(operation);
    if (flight->capture != 0)
      capture(flight, lock);
    else
      launch(flight);
    changed_.notify_all();
    if (operation.kind == OperationKind::kReceive)
      return Work(shared_from_this(), flight->ticket, operation.peer);
    return Work(shared_from_this(), flight->ticket);
  } catch (...) {
    fail(std::current_exception(), &operation);
  }
  return Work(shared_from_this(), kFailedTicket);
}

void NcclBackend::launch(const Pointer& flight) {
  if (is_point_to_point(flight->operation.kind)) {
    LOCKSTEP_CHECK(messages_, "a group of one has nobody to send to");
    messages_->launch(flight);
  } else {
    collectives_.push(flight);
    for (int i = 0; i < kLooksInStart && !flight->launched; ++i)
      collectives_.advance();
  }
}

// What is not in the capture when it ends is in no graph: here the host waits,
// as long as NCCL takes.
void NcclBackend::capture(const Pointer& flight, MutexLock& lock) {
  graphs_.add(flight);
  collectives_.push(flight);
  while (!error_ && !flight->launched)
    if (!look()) pause(lock, *flight, std::nullopt);
}

void NcclBackend::attach(const std::shared_ptr<CapturedGraph>& graph,
                         void* stream) {
  const GpuScope scope(gpu_);
  if (stream == nullptr) stream = current_stream(graph->device());
  const std::uint64_t capture =
      gpu_.capture_of(static_cast<LockstepGpuStream*>(stream));
  if (capture == 0)
    throw InvalidArgument(
        "attach: the stream is not being captured\n  next:    attach the graph "
        "before its capture ends, on the stream that is captured");
  MutexLock lock(mutex_);
  if (!error_) graphs_.attach(graph, capture);
}

NcclBackend::Pointer NcclBackend::find(std::uint64_t ticket, MutexLock& lock) {
  const auto found = flights_.find(ticket);
  if (found == flights_.end() && ticket != kFailedTicket) return nullptr;
  if (!error_) return found->second;
  const Deadline enough(kAbortTakes);
  while (!lines_aborted_ && !enough.expired())
    changed_.wait_until(lock, enough.when());
  std::rethrow_exception(error_);
}

void NcclBackend::pause(MutexLock& lock, const NcclFlight& flight,
                        std::optional<Deadline> limit) {
  const Deadline last =
      std::min(limit.value_or(flight.deadline), flight.deadline);
  if (last.expired())
    fail(std::make_exception_ptr(Timeout(describe_timeout(flight, place()))),
         &flight.operation);
  else
    changed_.wait_until(lock, std::min(last, Deadline(kShortestPause)).when());
}

void NcclBackend::hold_up(std::uint64_t ticket,
                          LockstepGpuStream* const* stream,
                          std::optional<Deadline> deadline) {
  MutexLock lock(mutex_);
  const auto order = [&](const NcclFlight& flight) {
    const GpuScope scope(gpu_);
    stream ? flight.ends.hold_up(*stream) : flight.hold_up_caller();
  };
  while (const Pointer flight = find(ticket, lock)) {
    if (flight->launched) return order(*flight);
    if (!look()) pause(lock, *flight, deadline);
  }
  if (const auto captured = graphs_.find(ticket)) order(*captured);
}

void NcclBackend::synchronize(std::uint64_t ticket,
                              std::optional<Deadline> deadline) {
  MutexLock lock(mutex_);
  if (!error_ && graphs_.find(ticket))
    throw InvalidArgument(
        "synchronize(): the operation is captured, and not carried out\n"
        "  next:    wait() for it here, and synchronize() the replay");
  while (const Pointer flight = find(ticket, lock))
    if (!look()) pause(lock, *flight, deadline);
}

bool NcclBackend::done(std::uint64_t ticket) {
  MutexLock lock(mutex_);
  if (flights_.contains(ticket)) look();
  return error_ ? lines_aborted_ : !flights_.contains(ticket);
}

std::vector<int> NcclBackend::missing(std::uint64_t ticket) {
  MutexLock lock(mutex_);
  const auto found = flights_.find(ticket);
  if (found == flights_.end() || error_) return {};
  const NcclFlight& flight = *found->second;
  if (is_point_to_point(flight.operation.kind)) return {flight.operation.peer};
  return flight.check ? flight.check->missing() : std::vector<int>{};
}

void NcclBackend::watch() {
  microseconds pause = kShortestPause;
  MutexLock lock(mutex_);
  while (!stopping_ && !error_) {
    if (flights_.empty()) {
      idle(lock);
      pause = kShortestPause;
      continue;
    }
    const bool busy = look() || !all_launched();
    pause = busy ? kShortestPause : std::min(2 * pause, kLongestPause);
    look_around_now_and_then(lock);
    if (!stopping_ && !error_) changed_.wait_for(lock, pause);
  }
  if (!error_) return;
  lock.unlock();
  abort_lines();
  await_graphs();
  lock.lock();
  lines_aborted_ = true;
  changed_.notify_all();
  lock.unlock();
  memory_->line_ended();
}

void NcclBackend::idle(MutexLock& lock) {
  free_memory();
  if (error_) return;
  if (memory_->has_dropped())
    changed_.wait_for(lock, kLongestPause);
  else
    changed_.wait(lock);
}

// With the lock held, so that nothing is started meanwhile. Else that might
// hang for want of a rank, and this thread, which would end it, wait for the
// device that it keeps busy.
void NcclBackend::free_memory() try {
  if (!memory_->has_dropped()) return;
  const GpuScope scope(gpu_);
  if (collectives_.line()->is_ready())
    memory_->free_dropped(*collectives_.line());
} catch (...) {
  fail(std::current_exception(), nullptr);
}

void NcclBackend::look_around_now_and_then(MutexLock& lock) {
  const auto now = Deadline::Clock::now();
  if (!control_ || error_ || now < next_look_around_) return;
  next_look_around_ = now + kLookAround;
  std::exception_ptr gone;
  lock.unlock();
  try {
    control_->look_around();
  } catch (...) {
    gone = std::current_exception();
  }
  lock.lock();
  if (gone) fail(gone, nullptr);
}

bool NcclBackend::all_launched() {
  return std::ranges::all_of(
      flights_, [](const auto& flight) { return flight.second->launched; });
}

bool NcclBackend::look() {
  if (error_) return true;
  try {
    const GpuScope scope(gpu_);
    const bool waited = !all_launched();
    collectives_.advance();
    if (messages_) messages_->advance();
    if (complete_what_is_done() || (waited && all_launched())) {
      changed_.notify_all();
      return true;
    }
    check_deadlines();
  } catch (...) {
    fail(std::current_exception(), nullptr);
  }
  return error_ != nullptr;
}

// The recorder is told of the backend only after its first start().
bool NcclBackend::is_done(NcclFlight& flight) const {
  if (flight.operation.record != kNotRecorded && recorder() == nullptr)
    return false;
  if (flight.check &&
      !flight.check->passed(flight.operation, identity_.rank, identity_.name))
    return false;
  return flight.launched && (flight.capture != 0 || flight.ends.happened());
}

bool NcclBackend::complete_what_is_done() {
  const std::size_t before = flights_.size();
  for (auto next = flights_.begin(); next != flights_.end();) {
    NcclFlight& flight = *next->second;
    if (!is_done(flight)) {
      ++next;
      continue;
    }
    if (recorder() != nullptr) recorder()->completed(flight.operation.record);
    next = flights_.erase(next);
  }
  return flights_.size() < before;
}

void NcclBackend::check_deadlines() {
  for (const auto& [ticket, flight] : flights_)
    if (flight->deadline.expired())
      throw Timeout(describe_timeout(*flight, place()));
}

void NcclBackend::fail(std::exception_ptr error,
                       const Operation* operation) noexcept {
  if (error_) return;
  const bool is_known = control_ && came_from(*control_, error);
  if (operation == nullptr && !flights_.empty())
    operation = &flights_.begin()->second->operation;
  error_ = explained(error, operation, place());
  std::string reason = "an unknown error";
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& known) {
    reason = known.what();
  }
  // Said again by this rank, others would take it for the culprit.
  if (control_ && !is_known) control_->abort(reason);
  if (recorder() != nullptr)
    for (const auto& [ticket, flight] : flights_)
      recorder()->failed(flight->operation.record, error_);
  changed_.notify_all();
}

void NcclBackend::abort_lines() noexcept {
  std::vector<GpuLine*> lines;
  if (messages_) lines = messages_->lines();
  lines.push_back(collectives_.line());
  abort_together(lines, [this] { graphs_.end(); });
}

// What of a graph comes behind its collectives goes on, and writes to memory.
void NcclBackend::await_graphs() noexcept try {
  std::vector<Pointer> replays;
  {
    MutexLock lock(mutex_);
    for (const auto& [ticket, flight] : flights_)
      if (flight->graph && flight->launched) replays.push_back(flight);
  }
  const GpuScope scope(gpu_);
  const Deadline enough(kAbortTakes);
  for (const Pointer& replay : replays) {
    Backoff backoff(1ms, 20ms);
    while (!replay->ends.happened())
      if (backoff.wait(enough) == WaitResult::kTimedOut) return;
  }
} catch (const std::exception&) {
  // A device that fails writes no more.
}

void NcclBackend::abort(std::string_view reason) noexcept {
  MutexLock lock(mutex_);
  fail(std::make_exception_ptr(
           Error(fmt::format("group \"{}\" was aborted on rank {}: {}",
                             identity_.name, identity_.rank, reason))),
       nullptr);
}

}  // namespace

std::shared_ptr<Backend> make_nccl_backend(Device device,
                                           const DeviceGroup& group) {
  const auto& [identity, store, settings, memory, look_around] = group;
  const Gpu gpu(load_gpu_table(settings), device.index);
  check_gpu(gpu);
  const GpuScope scope(gpu);
  const CardWait wait{settings.rendezvous_timeout, look_around};
  std::unique_ptr<GpuLine> line = meet_on_gpus(gpu, identity, *store, wait);
  std::shared_ptr<Backend> control;
  if (identity.size > 1) {
    // All have a line: nobody comes to the group of the CPU in vain.
    exchange_cards(identity, "nccl/line", "", *store, wait);
    GroupIdentity of_control = identity;
    of_control.name += "/nccl";
    // What it carries is small: it need not map, and in the end detach, the
    // ranks' heaps.
    Settings without_heap = settings;
    without_heap.heap_bytes = 0;
    control = make_backend("hybrid", of_control, store, without_heap);
  }
  return std::make_shared<NcclBackend>(gpu, identity, std::move(line),
                                       std::move(control), memory);
}

}  // namespace lockstep
