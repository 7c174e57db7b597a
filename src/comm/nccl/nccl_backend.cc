#include "src/comm/nccl/nccl_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/comm/hybrid/hybrid_backend.h"
#include "src/comm/nccl/attached_graphs.h"
#include "src/comm/nccl/control_calls.h"
#include "src/comm/nccl/device_group.h"
#include "src/comm/nccl/gpu_memory.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/nccl/nccl_calls.h"
#include "src/comm/nccl/nccl_errors.h"
#include "src/comm/nccl/nccl_operation.h"
#include "src/comm/nccl/nccl_rendezvous.h"
#include "src/comm/nccl/pending_operations.h"
#include "src/comm/nccl/point_to_point_communicators.h"
#include "src/comm/operation/current_stream.h"
#include "src/comm/operation/peer_checks.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

// The shortest and the longest pause between two polls of the group's thread.
constexpr microseconds kShortestPause = 20us;
constexpr microseconds kLongestPause = 2ms;
// The number of times that start() polls NCCL for the launch of an operation,
// before it leaves that to waiting threads.
constexpr int kLooksInStart = 200;
// How long leave() waits for operations that every rank has called, and for the
// other ranks, which may still read this rank's data; and then again for NCCL's
// own end.
constexpr auto kGoodbye = 1s;

// How long a waiting thread may wait for the abort of the lines before it gets
// the error: only an unresponsive device takes longer.
constexpr auto kAbortTakes = 10s;
// The tickets of operations that were started after the group's end, and of
// those in a capture.
constexpr std::uint64_t kFailedTicket = 0;
constexpr std::uint64_t kFailedInCapture = ~std::uint64_t{0};

class NcclBackend : public Backend,
                    public PendingWork,
                    public std::enable_shared_from_this<NcclBackend> {
 public:
  struct Parts {
    std::unique_ptr<GpuCommunicator> line;  // of all ranks
    std::shared_ptr<Backend> control;  // their CPU group; null for one rank
    std::shared_ptr<GpuMemory> memory;
    OperationCheck check = OperationCheck::kAll;
  };
  NcclBackend(const Gpu& gpu, const GroupIdentity& identity, Parts parts)
      : gpu_(gpu),
        identity_(identity),
        check_(parts.check),
        control_(std::move(parts.control)),
        memory_(std::move(parts.memory)),
        pending_(place()),
        collectives_(identity.rank, identity.size, memory_) {
    collectives_.set_line(std::move(parts.line));
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
  void leave() noexcept override;
  void check_peers() override {
    if (control_) control_->check_peers();
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
  using Pointer = PendingOperations::Pointer;

  std::uint64_t failed_ticket(const Operation& operation) const noexcept;
  Pointer make_operation(const Operation& operation) LOCKSTEP_REQUIRES(mutex_);
  void check_graph(const NcclOperation& pending) const
      LOCKSTEP_REQUIRES(mutex_);
  void launch(const Pointer& pending) LOCKSTEP_REQUIRES(mutex_);
  // Returns when the pending is in its capture, or the group has failed.
  void capture(const Pointer& pending, MutexLock& lock)
      LOCKSTEP_REQUIRES(mutex_);
  // Makes `stream`, or the stream of the pending's caller, wait for the
  // pending.
  void hold_up(std::uint64_t ticket, LockstepGpuStream* const* stream,
               std::optional<Deadline> deadline);
  // Null once it is complete; throws after the group has failed and no thread
  // or device touches the memory of operations any more.
  Pointer find(std::uint64_t ticket, MutexLock& lock) LOCKSTEP_REQUIRES(mutex_);
  // Gives up on `pending` if its deadline, or `limit`, has passed; otherwise
  // waits a moment, or until something has changed.
  void pause(MutexLock& lock, const NcclOperation& pending,
             std::optional<Deadline> limit) LOCKSTEP_REQUIRES(mutex_);

  void watch();
  // Waits for work, and frees memory meanwhile.
  void idle(MutexLock& lock) LOCKSTEP_REQUIRES(mutex_);
  void free_memory() LOCKSTEP_REQUIRES(mutex_);
  // Checks at intervals whether a rank is gone, with `lock` released meanwhile.
  void check_peers_regularly(MutexLock& lock) LOCKSTEP_REQUIRES(mutex_);
  // Advances the operations in flight; returns whether one was launched or
  // completed.
  bool look() LOCKSTEP_REQUIRES(mutex_);
  // Ends the group because of `error`, which came from `operation` (may be
  // null).
  void fail(std::exception_ptr error, const Operation* operation) noexcept
      LOCKSTEP_REQUIRES(mutex_);
  GpuPlace place() const { return {identity_, gpu_.index()}; }
  void end_graphs() noexcept;
  void end_as_left() noexcept;
  std::vector<GpuCommunicator*> all_lines() const;
  // Returns whether NCCL has ended this rank's part of all lines in good order.
  bool finalize_lines(Deadline deadline) noexcept;
  void abort_lines() noexcept;
  // Returns when the device has finished or dropped the lines' work.
  void await_lines() noexcept;
  // Waits for all ranks with the CPU group's collective of this number; returns
  // whether they have come.
  bool say_goodbye(ControlSequence number, Deadline deadline) noexcept;

  const Gpu gpu_;
  const GroupIdentity identity_;
  const OperationCheck check_;
  const std::shared_ptr<Backend> control_;
  const std::shared_ptr<GpuMemory> memory_;

  Mutex mutex_;
  std::condition_variable_any changed_;
  // Declared before the lines, which carry them out, and after the CPU group,
  // which writes to them.
  PendingOperations pending_ LOCKSTEP_GUARDED_BY(mutex_);
  ControlSequence control_sequence_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  AttachedGraphs graphs_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
  bool lines_aborted_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // after an error
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Used under the lock until an error, and then only by the group's thread,
  // which aborts them: that may take long.
  LaunchQueue collectives_;
  std::optional<PointToPointCommunicators> messages_;
  Deadline::Clock::time_point next_peer_check_{};  // used by the thread
  std::thread watch_;
};

NcclBackend::~NcclBackend() { NcclBackend::leave(); }

void NcclBackend::leave() noexcept {
  const Deadline goodbye(kGoodbye);
  bool failed = false;
  ControlSequence last = 0;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    while (!pending_.empty() && !error_ && !goodbye.expired())
      changed_.wait_until(lock, goodbye.when());
    if (!pending_.empty() && !error_)
      fail(std::make_exception_ptr(
               Error("it left the group with operations in flight")),
           nullptr);
    failed = error_ != nullptr;
    last = control_sequence_ + 1;
    stopping_ = true;
    changed_.notify_all();
  }
  watch_.join();
  bool in_order = !failed && say_goodbye(last, goodbye);
  end_graphs();
  // All lines are finalized before the first is destroyed, which would wait for
  // them.
  const Deadline end(kGoodbye);
  in_order = in_order && finalize_lines(end) && say_goodbye(last + 1, end);
  if (in_order)
    for (GpuCommunicator* const line : all_lines()) line->destroy();
  else if (!failed)
    abort_lines();
  end_as_left();
  if (failed) pending_.settle();
  if (failed && messages_) messages_->settle();
  if (control_) control_->leave();
}

// From here on only this thread uses the lines.
void NcclBackend::end_as_left() noexcept {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = group_was_left(identity_);
    lines_aborted_ = true;
    changed_.notify_all();
  }
  collectives_.set_line(nullptr);
  memory_->line_ended();
}

// A peer may still read data of an operation that is done here; the end of the
// communicator would interrupt it.
bool NcclBackend::say_goodbye(ControlSequence number,
                              Deadline deadline) noexcept try {
  if (!control_) return true;
  const Work barrier = control_->start({.kind = OperationKind::kBarrier,
                                        .sequence = number,
                                        .timeout = kNoDeadline,
                                        .label = "leaving the group"});
  Backoff backoff(1ms, 20ms);
  while (!barrier.done())
    if (backoff.wait(deadline) == WaitResult::kTimedOut) return false;
  barrier.wait();
  return true;
} catch (const std::exception&) {
  // Another rank has left already or has given up.
  return false;
}

// Registered memory is unregistered first: with several ranks in one process,
// NCCL would keep it until the last rank's end.
bool NcclBackend::finalize_lines(Deadline deadline) noexcept try {
  const GpuScope scope(gpu_);
  const std::vector<GpuCommunicator*> lines = all_lines();
  const auto await_ready = [&] {
    Backoff backoff(1ms, 2ms);
    while (!std::ranges::all_of(lines, &GpuCommunicator::is_ready))
      if (backoff.wait(deadline) == WaitResult::kTimedOut) return false;
    return true;
  };
  if (!await_ready()) return false;
  memory_->unregister_all(*collectives_.line());
  for (GpuCommunicator* const line : lines) line->finalize();
  return await_ready();
} catch (const std::exception&) {
  return false;
}

// The ticket of an operation that will not run. A captured operation touches no
// memory, so its waiter need not wait for running ones.
std::uint64_t NcclBackend::failed_ticket(
    const Operation& operation) const noexcept try {
  const GpuScope scope(gpu_);
  void* const stream = operation.stream != nullptr
                           ? operation.stream
                           : current_stream(device_of(operation));
  return gpu_.is_capturing(static_cast<LockstepGpuStream*>(stream))
             ? kFailedInCapture
             : kFailedTicket;
} catch (const std::exception&) {
  return kFailedTicket;
}

// A replay needs a graph of this group; a capture needs a collective and a
// graph.
void NcclBackend::check_graph(const NcclOperation& pending) const {
  if (pending.graph && !graphs_.has(pending.graph.get()))
    throw InvalidArgument(
        "the graph has no operations of this group, or its group no longer "
        "exists\n  next:    attach() it to the group that replays it, when its "
        "capture has begun");
  if (pending.capture != 0 &&
      (pending.graph || is_point_to_point(pending.operation.kind)))
    throw InvalidArgument(
        "only collectives can be captured\n  next:    send, receive and "
        "replay other graphs outside of the capture");
  if (pending.capture != 0 && !graphs_.takes(pending.capture))
    throw InvalidArgument(
        "its stream is being captured, but no graph of that capture is "
        "attached to the group\n  next:    attach() one when its capture has "
        "begun, to a group that has been used on this GPU before");
}

NcclBackend::Pointer NcclBackend::make_operation(const Operation& operation) {
  const Device device = device_of(operation);
  if (device.index != gpu_.index())
    throw InvalidArgument(fmt::format(
        "its buffers are on GPU {}, but the group has used GPU {} on this "
        "rank\n  next:    use one device per rank, or one group per device",
        device.index, gpu_.index()));
  auto pending = std::make_shared<NcclOperation>(operation, gpu_);
  check_graph(*pending);
  pending->ticket = pending_.next_ticket();
  pending->begins.record(pending->caller());
  if (control_ && CallCheck::is_wanted(operation, check_))
    pending->check.emplace(
        CallCheck::Call{pending->operation, pending->capture != 0}, *control_,
        identity_.size, control_sequence_);
  pending_.add(pending);
  return pending;
}

Work NcclBackend::start(const Operation& operation) {
  MutexLock lock(mutex_);
  if (error_) return Work(shared_from_this(), failed_ticket(operation));
  try {
    const GpuScope scope(gpu_);
    const Pointer pending = make_operation(operation);
    if (pending->capture != 0)
      capture(pending, lock);
    else
      launch(pending);
    changed_.notify_all();
    if (operation.kind == OperationKind::kReceive)
      return Work(shared_from_this(), pending->ticket, operation.peer);
    return Work(shared_from_this(), pending->ticket);
  } catch (...) {
    fail(std::current_exception(), &operation);
  }
  return Work(shared_from_this(), failed_ticket(operation));
}

void NcclBackend::launch(const Pointer& pending) {
  if (is_point_to_point(pending->operation.kind)) {
    LOCKSTEP_CHECK(messages_, "a group of one rank has no peer");
    messages_->launch(pending);
  } else {
    collectives_.push(pending);
    for (int i = 0; i < kLooksInStart && !pending->launched; ++i)
      collectives_.advance();
  }
}

// An operation that is not in the capture when it ends is in no graph: so the
// host waits here for as long as NCCL takes.
void NcclBackend::capture(const Pointer& pending, MutexLock& lock) {
  graphs_.add(pending);
  collectives_.push(pending);
  while (!error_ && !pending->launched)
    if (!look()) pause(lock, *pending, std::nullopt);
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
        "when its capture has begun, on the stream that is captured");
  MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  graphs_.attach(graph, capture);
}

NcclBackend::Pointer NcclBackend::find(std::uint64_t ticket, MutexLock& lock) {
  if (ticket == kFailedInCapture) std::rethrow_exception(error_);
  Pointer found = pending_.find(ticket);
  if (!found && ticket != kFailedTicket) return nullptr;
  if (!error_) return found;
  // An operation that the device was never given does not wait either.
  if (found && (found->capture != 0 || found->behind_capture))
    std::rethrow_exception(error_);
  const Deadline enough(kAbortTakes);
  while (!lines_aborted_ && !enough.expired())
    changed_.wait_until(lock, enough.when());
  std::rethrow_exception(error_);
}

void NcclBackend::pause(MutexLock& lock, const NcclOperation& pending,
                        std::optional<Deadline> limit) {
  const Deadline last =
      std::min(limit.value_or(pending.deadline), pending.deadline);
  if (last.expired())
    fail(std::make_exception_ptr(Timeout(describe_timeout(pending, place()))),
         &pending.operation);
  else
    changed_.wait_until(lock, std::min(last, Deadline(kShortestPause)).when());
}

void NcclBackend::hold_up(std::uint64_t ticket,
                          LockstepGpuStream* const* stream,
                          std::optional<Deadline> deadline) {
  MutexLock lock(mutex_);
  const auto order = [&](const NcclOperation& pending) {
    const GpuScope scope(gpu_);
    // Once its capture has ended, no operation can wait behind it.
    if (pending.capture != 0 &&
        pending.capture != gpu_.capture_of(pending.caller()))
      return;
    stream ? pending.ends.hold_up(*stream) : pending.hold_up_caller();
  };
  while (const Pointer pending = find(ticket, lock)) {
    if (pending->launched) return order(*pending);
    if (!look()) pause(lock, *pending, deadline);
  }
  const auto captured = graphs_.find(ticket);
  if (!captured) return;
  if (error_) std::rethrow_exception(error_);
  order(*captured);
}

void NcclBackend::synchronize(std::uint64_t ticket,
                              std::optional<Deadline> deadline) {
  MutexLock lock(mutex_);
  if (graphs_.find(ticket))
    throw InvalidArgument(
        "synchronize(): the operation is captured, and does not run\n"
        "  next:    wait() for it here, and synchronize() the replay");
  while (const Pointer pending = find(ticket, lock))
    if (!look()) pause(lock, *pending, deadline);
}

bool NcclBackend::done(std::uint64_t ticket) {
  MutexLock lock(mutex_);
  if (pending_.find(ticket)) look();
  const Pointer pending = pending_.find(ticket);
  if (!error_) return !pending;
  return lines_aborted_ || ticket == kFailedInCapture ||
         (pending && pending->capture != 0) || graphs_.find(ticket);
}

std::vector<int> NcclBackend::missing(std::uint64_t ticket) {
  MutexLock lock(mutex_);
  return error_ ? std::vector<int>{} : pending_.missing(ticket);
}

void NcclBackend::watch() {
  microseconds pause = kShortestPause;
  MutexLock lock(mutex_);
  while (!stopping_ && !error_) {
    if (pending_.empty()) {
      idle(lock);
      pause = kShortestPause;
      continue;
    }
    const bool busy = look() || !pending_.all_launched();
    pause = busy ? kShortestPause : std::min(2 * pause, kLongestPause);
    check_peers_regularly(lock);
    if (!stopping_ && !error_) changed_.wait_for(lock, pause);
  }
  if (!error_) return;
  lock.unlock();
  abort_lines();
  await_lines();
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

// Holds the lock, so that no operation starts meanwhile. Otherwise that
// operation might hang because a rank is missing, while this thread, which
// would end it, waits for the device that it occupies.
void NcclBackend::free_memory() try {
  if (!memory_->has_dropped()) return;
  const GpuScope scope(gpu_);
  if (collectives_.line()->is_ready())
    memory_->free_dropped(*collectives_.line());
} catch (...) {
  fail(std::current_exception(), nullptr);
}

void NcclBackend::check_peers_regularly(MutexLock& lock) {
  const auto now = Deadline::Clock::now();
  if (!control_ || error_ || now < next_peer_check_) return;
  next_peer_check_ = now + kPeerCheckInterval;
  std::exception_ptr gone;
  lock.unlock();
  try {
    control_->check_peers();
  } catch (...) {
    gone = std::current_exception();
  }
  lock.lock();
  if (gone) fail(gone, nullptr);
}

bool NcclBackend::look() {
  if (error_) return true;
  try {
    const GpuScope scope(gpu_);
    const bool waited = !pending_.all_launched();
    collectives_.advance();
    if (messages_) messages_->advance();
    if (pending_.complete(observer()) || (waited && pending_.all_launched())) {
      changed_.notify_all();
      return true;
    }
    pending_.check_deadlines();
  } catch (...) {
    fail(std::current_exception(), nullptr);
  }
  return error_ != nullptr;
}

void NcclBackend::fail(std::exception_ptr error,
                       const Operation* operation) noexcept {
  if (error_) return;
  const bool is_known = control_ && came_from(*control_, error);
  if (operation == nullptr) operation = pending_.first();
  error_ = explained(error, operation, place());
  std::string reason = "an unknown error";
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& known) {
    reason = known.what();
  }
  // If this rank repeated the error, others would take it for the culprit.
  if (control_ && !is_known) control_->abort(reason);
  pending_.failed(observer(), error_);
  changed_.notify_all();
}

// Also ends the graphs of operations that wait for the end of a capture.
void NcclBackend::end_graphs() noexcept {
  std::vector<std::shared_ptr<CapturedGraph>> graphs;
  {
    MutexLock lock(mutex_);
    graphs = graphs_.with_operations();
  }
  for (const auto& graph : graphs) graph->end();
}

std::vector<GpuCommunicator*> NcclBackend::all_lines() const {
  std::vector<GpuCommunicator*> lines;
  if (messages_) lines = messages_->lines();
  lines.push_back(collectives_.line());
  return lines;
}

void NcclBackend::abort_lines() noexcept {
  abort_together(all_lines(), [this] { end_graphs(); });
}

// A graph's work after its collectives continues and writes to memory.
// Collectives do so too for a moment, if other ranks of this process have not
// aborted theirs.
void NcclBackend::await_lines() noexcept try {
  const GpuScope scope(gpu_);
  const Deadline enough(kAbortTakes);
  for (GpuCommunicator* const line : all_lines()) {
    if (gpu_.is_capturing(line->stream())) continue;
    GpuEvent end(gpu_);
    end.record(line->stream());
    Backoff backoff(1ms, 2ms);
    while (!end.happened())
      if (backoff.wait(enough) == WaitResult::kTimedOut) return;
  }
} catch (const std::exception&) {
  // A failed device writes no more.
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
  const auto& [identity, store, settings, memory, check_peers] = group;
  const Gpu gpu(load_gpu_table(settings), device.index);
  check_gpu(gpu);
  const GpuScope scope(gpu);
  const GatherWait wait{settings.rendezvous_timeout, check_peers};
  std::unique_ptr<GpuCommunicator> line = rendezvous_on_gpus(gpu, group, wait);
  std::shared_ptr<Backend> control;
  if (identity.size > 1) {
    // All ranks have a line, so no rank joins the CPU group in vain.
    store_all_gather(identity, "nccl/line", "", *store, wait);
    GroupIdentity of_control = identity;
    of_control.name += "/nccl";
    // The CPU group's data are small: it need not map, and later detach, the
    // ranks' heaps.
    Settings without_heap = settings;
    without_heap.heap_bytes = 0;
    control = make_hybrid_backend(of_control, store, without_heap);
  }
  return make_shared_in_own_process<NcclBackend>(
      gpu, identity,
      NcclBackend::Parts{std::move(line), std::move(control), memory,
                         settings.check});
}

}  // namespace lockstep
