#include "src/comm/wire/wire_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/own_process.h"
#include "src/comm/operation/start_thread.h"
#include "src/comm/wire/collective.h"
#include "src/comm/wire/transport_plugin.h"
#include "src/comm/wire/wire_group.h"
#include "src/comm/wire/wire_message_matcher.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long an operation stays queued for a waiting caller before the group's
// own thread carries it out.
constexpr auto kUnclaimed = 200us;

// A started operation, with a copy of the lists that it borrows.
struct Queued {
  explicit Queued(const Operation& given)
      : inputs(given.inputs.begin(), given.inputs.end()),
        outputs(given.outputs.begin(), given.outputs.end()),
        label(given.label),
        operation(given),
        deadline(given.timeout) {
    operation.inputs = inputs;
    operation.outputs = outputs;
    operation.label = label;
  }
  Queued(const Queued&) = delete;
  Queued& operator=(const Queued&) = delete;

  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  std::string label;
  Operation operation;
  Deadline::Clock::time_point begun = Deadline::Clock::now();
  Deadline deadline;
};

std::vector<int> others_of(const GroupIdentity& identity) {
  std::vector<int> others;
  for (int rank = 0; rank < identity.size; ++rank)
    if (rank != identity.rank) others.push_back(rank);
  return others;
}

// Whether this rank itself has ended the connections.
bool is_closed_here(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const TransportError& closed) {
    return closed.status() == kTransportClosed;
  } catch (...) {
    return false;
  }
}

class WireBackend : public Backend,
                    public PendingWork,
                    public std::enable_shared_from_this<WireBackend> {
 public:
  WireBackend(const std::string& plugin, const GroupIdentity& identity,
              std::unique_ptr<WireCore> core,
              std::unique_ptr<CollectiveWay> way)
      : name_(way ? way->name() : plugin),
        identity_(identity),
        core_(std::move(core)),
        way_(std::move(way)) {
    if (!core_) return;
    control_ = std::make_unique<ControlExchange>(*core_);
    matcher_ = std::make_unique<WireMessageMatcher>(
        *core_, [this](const auto& message, const std::exception_ptr& error) {
          fail_message(message, error);
        });
    // The ranks of this host may be connected to this one in no other way.
    if (!way_ || !way_->has_peers_on_host()) return;
    core_->know_host(
        {.check = [this] { way_->check_peers(); },
         .tell =
             [this](const Fault& fault) { way_->abort(as_reason(fault)); }});
  }
  ~WireBackend() override;

  std::string_view name() const override { return name_; }
  bool supports(const Operation& operation) const override;
  Work start(const Operation& operation) override;
  void abort(std::string_view reason) noexcept override;
  void leave() noexcept override;
  void check_peers() override;
  std::shared_ptr<Backend> duplicate(const GroupIdentity& identity,
                                     int number) override;
  bool can_duplicate() const override { return true; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return way_ ? way_->allocate(bytes) : Backend::allocate(bytes);
  }

  void wait(std::uint64_t ticket, std::optional<Deadline> deadline) override;
  bool done(std::uint64_t ticket) override { return settled(ticket); }
  std::vector<int> missing(std::uint64_t ticket) override;

  void wait_for_message(const WireMessageMatcher::Pointer& message,
                        Deadline deadline);
  WireMessageMatcher& matcher() { return *matcher_; }
  std::vector<int> missing_in(const Operation& operation) const {
    return core_->missing_in(operation);
  }

 private:
  Work start_message(const Operation& operation);
  void fail_message(const WireMessageMatcher::Pointer& message,
                    const std::exception_ptr& error) noexcept;
  // Whether a collective is in flight.
  bool is_busy();
  bool is_leaving();
  bool settled(std::uint64_t ticket) const {
    return completed_.load() >= ticket || broken_;
  }
  void carry_out_oldest(Deadline limit) LOCKSTEP_REQUIRES(engine_);
  // Null once `ticket` is settled. Shared, because a thread may describe the
  // operation while the engine's holder completes it.
  std::shared_ptr<Queued> oldest_until(std::uint64_t ticket);
  std::exception_ptr error();
  void fail(const WireCore::Failure& failure) noexcept;
  void end_as_left() noexcept;
  void run_carrier();
  void release_claim();

  const std::string name_;
  const GroupIdentity identity_;
  std::unique_ptr<WireCore> core_;      // null in a group of one
  std::unique_ptr<CollectiveWay> way_;  // null: only the wire
  // The thread that holds it carries out the oldest operation, and may block.
  Mutex engine_;
  std::unique_ptr<ControlExchange> control_;
  std::unique_ptr<WireMessageMatcher> matcher_;

  // Held for a few instructions; if both are held, engine_ was taken first.
  Mutex queue_mutex_;
  std::condition_variable_any changed_;
  std::condition_variable_any carrier_wakes_;
  std::deque<std::shared_ptr<Queued>> queue_ LOCKSTEP_GUARDED_BY(queue_mutex_);
  std::uint64_t started_ LOCKSTEP_GUARDED_BY(queue_mutex_) = 0;
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(queue_mutex_);
  bool parked_ LOCKSTEP_GUARDED_BY(queue_mutex_) = false;
  bool stopping_ LOCKSTEP_GUARDED_BY(queue_mutex_) = false;
  // Tickets up to this one are complete.
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> broken_{false};
  // A waiting thread carries out the oldest operation, so the carrier need not.
  std::atomic<bool> claimed_{false};
  // Kept until this ends: each has receives posted on the connections, and
  // destroying it would close those.
  std::vector<std::shared_ptr<WireBackend>> duplicates_
      LOCKSTEP_GUARDED_BY(queue_mutex_);
  Mutex fault_mutex_;  // one thread gives up at a time
  std::thread carrier_ LOCKSTEP_GUARDED_BY(queue_mutex_);
};

// The handle on a message.
class MessageWork : public PendingWork {
 public:
  MessageWork(std::shared_ptr<WireBackend> backend,
              WireMessageMatcher::Pointer message)
      : backend_(std::move(backend)), message_(std::move(message)) {}

  void wait(std::uint64_t, std::optional<Deadline> deadline) override {
    if (message_->done) return;
    backend_->wait_for_message(
        message_,
        std::min(deadline.value_or(message_->deadline), message_->deadline));
  }
  bool done(std::uint64_t) override {
    return backend_->matcher().done(message_);
  }
  std::vector<int> missing(std::uint64_t ticket) override {
    if (done(ticket)) return {};
    return backend_->missing_in(message_->operation);
  }
  int source_rank(std::uint64_t) override {
    return message_->done ? message_->source : -1;
  }

 private:
  const std::shared_ptr<WireBackend> backend_;
  const WireMessageMatcher::Pointer message_;
};

WireBackend::~WireBackend() {
  WireBackend::leave();
  matcher_.reset();
}

bool WireBackend::is_busy() {
  const MutexLock lock(queue_mutex_);
  return !queue_.empty() && !error_;
}

void WireBackend::leave() noexcept {
  std::thread carrier;
  std::vector<std::shared_ptr<WireBackend>> duplicates;
  bool busy = is_busy();
  {
    const MutexLock lock(queue_mutex_);
    if (std::exchange(stopping_, true)) return;
    if (core_) core_->hurry();
    duplicates = duplicates_;
    carrier.swap(carrier_);
    carrier_wakes_.notify_all();
  }
  // The connections, which the duplicates share, end with the group.
  for (const auto& duplicate : duplicates) busy = busy || duplicate->is_busy();
  if (!core_) return;
  constexpr const char* kBusy = "it left the group with operations in flight";
  if (busy) core_->leave_at_once(kBusy);
  if (busy && way_) way_->abort(kBusy);
  if (carrier.joinable()) carrier.join();
  end_as_left();
}

// A thread that is carrying out an operation meets the end of the transport now
// or later.
void WireBackend::end_as_left() noexcept {
  const MutexLock engine(engine_);
  const MutexLock one(fault_mutex_);
  if (way_) way_->leave();
  core_->leave();
  if (broken_) return;
  const std::exception_ptr left = group_was_left(identity_);
  {
    const MutexLock lock(queue_mutex_);
    error_ = left;
    broken_ = true;
    changed_.notify_all();
  }
  matcher_->stop(left);
}

bool WireBackend::supports(const Operation& operation) const {
  const auto on_cpu = [](const Buffer& buffer) {
    return buffer.device.kind == DeviceKind::kCpu;
  };
  return std::ranges::all_of(operation.inputs, on_cpu) &&
         std::ranges::all_of(operation.outputs, on_cpu);
}

std::exception_ptr WireBackend::error() {
  const MutexLock lock(queue_mutex_);
  return error_;
}

Work WireBackend::start(const Operation& operation) {
  if (broken_) return Work::failed(error());
  if (is_point_to_point(operation.kind)) return start_message(operation);
  if (!core_) {
    run_alone(operation);
    return {};
  }
  const MutexLock lock(queue_mutex_);
  if (error_) return Work::failed(error_);
  // Without a thread it progresses when a caller waits or starts another one.
  if (!carrier_.joinable() && !stopping_)
    carrier_ = try_start_thread(identity_.name, [this] { run_carrier(); });
  // Last: an operation whose start throws must not be carried out.
  queue_.push_back(std::make_shared<Queued>(operation));
  if (parked_) carrier_wakes_.notify_one();
  return Work(shared_from_this(), ++started_);
}

Work WireBackend::start_message(const Operation& operation) {
  if (!core_)
    return Work::failed(std::make_exception_ptr(
        InvalidArgument(fmt::format("{}: group \"{}\" has no other rank",
                                    describe(operation), identity_.name))));
  auto message = std::make_shared<WireMessage>(operation);
  try {
    matcher_->post(message);
    if (message->done)
      return message->source < 0 ? Work()
                                 : Work::received_from(message->source);
    return Work(std::make_shared<MessageWork>(shared_from_this(), message), 0);
  } catch (...) {
    // It must not go on in memory whose owner has seen an exception.
    fail_message(message, std::current_exception());
    throw;
  }
}

void WireBackend::wait_for_message(const WireMessageMatcher::Pointer& message,
                                   Deadline deadline) {
  try {
    matcher_->wait(message, deadline);
    return;
  } catch (...) {
    fail_message(message, std::current_exception());
  }
  if (!message->done) std::rethrow_exception(error());
}

void WireBackend::fail_message(const WireMessageMatcher::Pointer& message,
                               const std::exception_ptr& error) noexcept {
  const auto completed = [&] {
    return matcher_->done(message) && !message->error;
  };
  fail({error, message->operation, message->begun, completed});
}

std::shared_ptr<Queued> WireBackend::oldest_until(std::uint64_t ticket) {
  const MutexLock lock(queue_mutex_);
  return queue_.empty() || settled(ticket) ? nullptr : queue_.front();
}

void WireBackend::carry_out_oldest(Deadline limit) {
  constexpr auto kAny = std::numeric_limits<std::uint64_t>::max();
  const std::shared_ptr<Queued> queued = oldest_until(kAny);
  if (!queued) return;
  try {
    Collective(*core_, *control_, queued->operation,
               std::min(queued->deadline, limit))
        .run(way_.get());
  } catch (...) {
    fail({std::current_exception(), queued->operation, queued->begun});
    if (way_) way_->calm_down();
    return;
  }
  core_->expect_nobody();
  const MutexLock lock(queue_mutex_);
  queue_.pop_front();
  completed_.fetch_add(1);
}

// The carrier may have parked because of the claim.
void WireBackend::release_claim() {
  changed_.notify_all();
  claimed_ = false;
  const MutexLock lock(queue_mutex_);
  if (parked_ && !queue_.empty()) carrier_wakes_.notify_one();
}

void WireBackend::wait(std::uint64_t ticket, std::optional<Deadline> deadline) {
  while (!settled(ticket)) {
    if (engine_.try_lock()) {
      claimed_ = true;
      if (!settled(ticket))
        carry_out_oldest(deadline.value_or(Deadline::never()));
      engine_.unlock();
      release_claim();
      continue;
    }
    Deadline limit = deadline.value_or(Deadline::never());
    {
      MutexLock lock(queue_mutex_);
      if (settled(ticket)) break;
      limit = std::min(limit, queue_[ticket - completed_.load() - 1]->deadline);
      changed_.wait_until(
          lock,
          std::min(limit, Deadline(std::chrono::milliseconds(20))).when());
    }
    const std::shared_ptr<Queued> blocking =
        limit.expired() ? oldest_until(ticket) : nullptr;
    if (blocking)
      fail({std::make_exception_ptr(WaitExpired()), blocking->operation,
            blocking->begun, [&] { return oldest_until(ticket) != blocking; }});
  }
  if (completed_.load() >= ticket) return;
  // No thread of this process touches the operation's buffers any more.
  const MutexLock engine(engine_);
  std::rethrow_exception(error());
}

std::vector<int> WireBackend::missing(std::uint64_t ticket) {
  return settled(ticket) ? std::vector<int>{} : core_->missing();
}

void WireBackend::abort(std::string_view reason) noexcept {
  if (!core_) return;
  core_->hurry();
  const Operation nothing;
  fail({std::make_exception_ptr(
            Error(fmt::format("group \"{}\" was aborted on rank {}: {}",
                              identity_.name, identity_.rank, reason))),
        nothing, Deadline::Clock::now()});
}

// The two share the connections and the fault in the store, so a failure ends
// both.
std::shared_ptr<Backend> WireBackend::duplicate(const GroupIdentity& identity,
                                                int number) {
  // Fallible steps come before the core, whose destructor would end the
  // transport.
  auto way = way_ ? way_->duplicate(identity, number) : nullptr;
  auto made = make_shared_in_own_process<WireBackend>(
      name_, identity,
      core_ ? std::make_unique<WireCore>(*core_, identity, number) : nullptr,
      std::move(way));
  const MutexLock lock(queue_mutex_);
  duplicates_.push_back(made);
  return made;
}

void WireBackend::check_peers() {
  if (broken_) std::rethrow_exception(error());
  if (!core_) return;
  auto fault = core_->look_for_fault();
  if (!fault) return;
  const Operation nothing;
  fail({std::make_exception_ptr(FaultSeen(std::move(*fault))), nothing,
        Deadline::Clock::now()});
  std::rethrow_exception(error());
}

bool WireBackend::is_leaving() {
  const MutexLock lock(queue_mutex_);
  return stopping_;
}

// Does nothing if the operation completes meanwhile.
void WireBackend::fail(const WireCore::Failure& failure) noexcept {
  const MutexLock one(fault_mutex_);
  if (broken_) return;
  // leave() tells the other ranks, and has closed the transport.
  const std::exception_ptr told = is_closed_here(failure.error) && is_leaving()
                                      ? group_was_left(identity_)
                                      : core_->give_up(failure);
  if (!told) return;
  {
    const MutexLock lock(queue_mutex_);
    error_ = told;
    broken_ = true;
    changed_.notify_all();
  }
  matcher_->stop(told);
}

// Carries out operations that no thread waits for.
void WireBackend::run_carrier() {
  MutexLock lock(queue_mutex_);
  while (!stopping_) {
    if (queue_.empty() || error_ || claimed_) {
      parked_ = true;
      carrier_wakes_.wait(lock);
      parked_ = false;
      continue;
    }
    const auto due = queue_.front()->begun + kUnclaimed;
    if (Deadline::Clock::now() < due) {
      carrier_wakes_.wait_until(lock, due);
      continue;
    }
    lock.unlock();
    {
      const MutexLock engine(engine_);
      carry_out_oldest(Deadline::never());
    }
    changed_.notify_all();
    lock.lock();
  }
}

}  // namespace

std::shared_ptr<Backend> make_wire_backend(const std::string& plugin,
                                           const GroupIdentity& identity,
                                           std::shared_ptr<Store> store,
                                           const Settings& settings,
                                           std::unique_ptr<CollectiveWay> way) {
  std::unique_ptr<WireCore> core;
  if (identity.size > 1)
    core = meet_on_the_wire(plugin, identity,
                            way ? way->first_peers() : others_of(identity),
                            std::move(store), settings);
  else
    load_transport(plugin, settings);  // throws at once if it is missing
  return make_shared_in_own_process<WireBackend>(
      plugin, identity, std::move(core), std::move(way));
}

}  // namespace lockstep
