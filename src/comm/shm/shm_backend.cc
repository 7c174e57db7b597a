#include "src/comm/shm/shm_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/comm/operation/peer_checks.h"
#include "src/comm/operation/start_thread.h"
#include "src/comm/shm/announced_wait.h"
#include "src/comm/shm/collective_queue.h"
#include "src/comm/shm/local_exchange.h"
#include "src/comm/shm/message_matcher.h"
#include "src/comm/shm/peer_heaps.h"
#include "src/comm/shm/peer_status.h"
#include "src/comm/shm/progress_lock.h"
#include "src/comm/shm/progress_thread.h"
#include "src/comm/shm/shm_connection.h"
#include "src/comm/shm/wait_target.h"
#include "src/comm/shm/withdrawal.h"

namespace lockstep {
namespace {

using std::chrono::nanoseconds;

// The number of times that start() polls for peers that may be about to arrive,
// before it leaves an operation to waiting threads.
constexpr int kLooksInStart = 40;

class ShmBackend : public Backend,
                   public PendingWork,
                   public ShmConnection::Member,
                   public std::enable_shared_from_this<ShmBackend> {
 public:
  // `mapping` is its control block, which `heaps` uses too.
  ShmBackend(const GroupIdentity& identity,
             std::shared_ptr<ShmConnection> connection,
             std::shared_ptr<SharedMapping> mapping, PeerHeaps heaps)
      : identity_(identity),
        connection_(std::move(connection)),
        mapping_(std::move(mapping)),
        control_(mapping_->data(), identity.size),
        bell_(control_.block(), connection_->cores()),
        rounds_(control_, identity.rank, identity.size, bell_),
        peer_status_(identity, control_, connection_->processes()),
        heaps_(std::move(heaps)),
        context_{identity, control_, &rounds_, &heaps_},
        matcher_(context_, bell_) {}

  ~ShmBackend() override {
    ShmBackend::leave();
    connection_->remove(*this);
  }

  std::string_view name() const override { return "shm"; }

  bool supports(const Operation& operation) const override {
    const auto on_cpu = [](const Buffer& buffer) {
      return buffer.device.kind == DeviceKind::kCpu;
    };
    return std::ranges::all_of(operation.inputs, on_cpu) &&
           std::ranges::all_of(operation.outputs, on_cpu);
  }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    auto block = heaps_.allocate(bytes);
    return block ? block : Backend::allocate(bytes);
  }

  std::shared_ptr<Heap> heap() const override { return heaps_.own(); }
  bool reduces_in_place() const override { return true; }
  void check_peers() override;
  std::shared_ptr<Backend> duplicate(const GroupIdentity& identity,
                                     int number) override;
  bool can_duplicate() const override { return true; }
  void end_with(const std::exception_ptr& error, const PeerExit& why) override;

  Work start(const Operation& operation) override {
    note_thread();
    return is_point_to_point(operation.kind) ? start_message(operation)
                                             : start_collective(operation);
  }
  void abort(std::string_view reason) noexcept override;
  void leave() noexcept override;

  void wait(std::uint64_t ticket, std::optional<Deadline> deadline) override {
    wait_for(collective(ticket), deadline);
  }
  bool done(std::uint64_t ticket) override {
    return settled_after_try(collective(ticket));
  }
  std::vector<int> missing(std::uint64_t ticket) override {
    return missing_of(collective(ticket));
  }

 private:
  friend class MessageWork;

  WaitTarget collective(std::uint64_t ticket) { return {collectives_, ticket}; }
  WaitTarget arrival(const ShmMessage& message) {
    return {collectives_, message};
  }

  void abandon_what_is_in_flight();
  Work start_collective(const Operation& operation);
  Work start_message(const Operation& operation);
  void be_carried_forward();
  void look_a_few_times(PendingCollective& collective)
      LOCKSTEP_REQUIRES(progress_lock_);

  void advance_all() LOCKSTEP_REQUIRES(progress_lock_);
  void advance_queue() LOCKSTEP_REQUIRES(progress_lock_);
  bool advance_one(PendingCollective& collective)
      LOCKSTEP_REQUIRES(progress_lock_);
  void advance_messages() LOCKSTEP_REQUIRES(progress_lock_);
  void advance_or_give_up() LOCKSTEP_REQUIRES(progress_lock_);
  void give_up_in_catch() LOCKSTEP_REQUIRES(progress_lock_);
  void look_for_deaths() LOCKSTEP_REQUIRES(progress_lock_);
  bool try_advance();
  std::uint64_t tend();
  void check_in_flight();
  // Lives while a thread waits, so that the progress thread need not wake.
  class Attended {
   public:
    explicit Attended(ShmBackend& backend) : backend_(backend) {
      ++backend_.waiters_;
    }
    ~Attended() {
      if (--backend_.waiters_ == 0 && backend_.state_of_flights() != 0)
        backend_.be_carried_forward();
    }
    Attended(const Attended&) = delete;
    Attended& operator=(const Attended&) = delete;

   private:
    ShmBackend& backend_;
  };
  std::uint64_t state_of_flights();

  bool settled(const WaitTarget& target) const {
    return broken_ || target.complete();
  }
  bool settled_after_try(const WaitTarget& target) {
    if (settled(target)) return true;
    return try_advance() && settled(target);
  }
  void note_thread();
  void wait_for(const WaitTarget& target, std::optional<Deadline> deadline);
  std::exception_ptr wait_until_settled(const WaitTarget& target,
                                        std::optional<Deadline> deadline);
  void end_after_exception(const WaitTarget& target);
  std::vector<int> missing_of(const WaitTarget& target);
  using TimePoint = Deadline::Clock::time_point;
  void check_peers(const WaitTarget& target, Deadline deadline,
                   TimePoint waited_since, AnnouncedWait* announced = nullptr);
  void check_peers(const WaitTarget& target) LOCKSTEP_REQUIRES(progress_lock_);
  void check_deadline(const WaitTarget& target, Deadline deadline,
                      TimePoint waited_since) LOCKSTEP_REQUIRES(progress_lock_);
  // The caller holds the progress_lock: no other thread of this process touches
  // the buffers of the operations any more.
  void give_up(const std::exception_ptr& error, const PeerExit& why)
      LOCKSTEP_REQUIRES(progress_lock_);

  std::vector<int> missing_now(const WaitTarget& target)
      LOCKSTEP_REQUIRES(progress_lock_);
  bool is_in_flight(std::uint64_t ticket) {
    return collectives_.visit(ticket, [](PendingCollective&) {});
  }
  std::exception_ptr error() {
    MutexLock lock(mutex_);
    return error_;
  }
  void end_duplicates();
  // Like end_duplicates(), call it while no progress_lock is held.
  std::exception_ptr error_of_all() {
    end_duplicates();
    return error();
  }

  const GroupIdentity identity_;
  const std::shared_ptr<ShmConnection> connection_;
  std::shared_ptr<SharedMapping> mapping_;
  ControlView control_;
  Doorbell bell_;
  Rounds rounds_;
  PeerStatus peer_status_;
  PeerHeaps heaps_;

  // The thread that holds `progress_lock_` advances the operations in flight;
  // it never waits while holding it. `mutex_` is only held for a few
  // instructions, so that starting an operation does not wait for another one's
  // execution. If both are held, `progress_lock_` was taken first.
  ProgressLock progress_lock_{bell_};
  ShmContext context_ LOCKSTEP_GUARDED_BY(progress_lock_);
  MessageMatcher matcher_ LOCKSTEP_GUARDED_BY(progress_lock_);
  std::atomic<bool> has_messages_{false};
  CollectiveQueue collectives_;
  Mutex mutex_;
  std::vector<std::shared_ptr<ShmMessage>> posted_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
  PeerExit why_ LOCKSTEP_GUARDED_BY(mutex_);  // with error_
  // The first rank to see a death wakes the others, so that many ranks need not
  // check as often as few. A launcher waits 300 ms for their records.
  static constexpr int kRanksThatCheckOften = 16;
  const std::chrono::milliseconds check_interval_ =
      kPeerCheckInterval *
      std::clamp(identity_.size / kRanksThatCheckOften, 1, 3);
  std::atomic<bool> broken_{false};
  std::atomic<int> waiters_{0};
  std::atomic<std::thread::id> user_{};  // the first thread to use the group
  std::atomic<bool> has_several_users_{false};
  std::atomic<bool> ended_duplicates_{false};
  Deadline::Clock::time_point next_look_;  // the progress thread's
  std::unique_ptr<ProgressThread> progress_ LOCKSTEP_GUARDED_BY(mutex_);
};

// A send or receive that did not complete at once.
class MessageWork : public PendingWork {
 public:
  MessageWork(std::shared_ptr<ShmBackend> backend,
              std::shared_ptr<ShmMessage> message)
      : backend_(std::move(backend)), message_(std::move(message)) {}

  void wait(std::uint64_t, std::optional<Deadline> deadline) override {
    backend_->wait_for(backend_->arrival(*message_), deadline);
  }
  bool done(std::uint64_t) override {
    return backend_->settled_after_try(backend_->arrival(*message_));
  }
  std::vector<int> missing(std::uint64_t) override {
    return backend_->missing_of(backend_->arrival(*message_));
  }
  int source_rank(std::uint64_t) override {
    return message_->done.load() ? message_->source : -1;
  }

 private:
  std::shared_ptr<ShmBackend> backend_;
  std::shared_ptr<ShmMessage> message_;
};

// Peers that start the same operation arrive within a fraction of a
// microsecond: polling a few times is cheaper than what follows.
void ShmBackend::look_a_few_times(PendingCollective& collective) try {
  for (int i = 0; i < kLooksInStart && !broken_; ++i)
    if (advance_one(collective) || !collective.small() ||
        !bell_.pause_briefly(i))
      return;
} catch (...) {
  give_up_in_catch();
}

Work ShmBackend::start_collective(const Operation& operation) {
  if (broken_) return Work::failed(error_of_all());
  std::uint64_t ticket = 0;
  if (progress_lock_.try_lock()) {
    const ProgressGuard held(progress_lock_, std::adopt_lock);
    const auto started = collectives_.start(operation, identity_);
    ticket = started.ticket;
    if (started.only != nullptr) look_a_few_times(*started.only);
  } else {
    ticket = collectives_.start(operation, identity_).ticket;
    try_advance();  // a thread that waits may sleep already
  }
  if (collectives_.completed() >= ticket) return Work();
  if (broken_) return Work::failed(error_of_all());
  collectives_.visit(
      ticket, [](PendingCollective& collective) { collective.start_clock(); });
  if (!operation.attended) be_carried_forward();
  return Work(shared_from_this(), ticket);
}

Work ShmBackend::start_message(const Operation& operation) {
  auto message = std::make_shared<ShmMessage>(operation);
  {
    MutexLock lock(mutex_);
    if (error_) return Work::failed(error_);
    posted_.push_back(message);
    has_messages_ = true;
  }
  if (settled_after_try(arrival(*message))) {
    if (message->done.load()) return Work::received_from(message->source);
    return Work::failed(error_of_all());
  }
  try {
    be_carried_forward();
    return Work(std::make_shared<MessageWork>(shared_from_this(), message), 0);
  } catch (...) {
    end_after_exception(arrival(*message));
    throw;
  }
}

// Ensures that a thread advances the operations in flight even if no caller
// waits.
void ShmBackend::be_carried_forward() {
  MutexLock lock(mutex_);
  if (!progress_) try {
      progress_ = std::make_unique<ProgressThread>([this] { return tend(); });
    } catch (const std::exception& failure) {  // no thread, or no memory
      // Then operations progress when a caller waits or starts another one.
      return warn_of_missing_thread(identity_.name, failure);
    }
  progress_->notify();
}

// Peers may still reduce into the memory of an operation that no caller waited
// for.
void ShmBackend::abandon_what_is_in_flight() {
  const ProgressGuard progress_lock(progress_lock_);
  if (state_of_flights() == 0) return;
  give_up(group_was_left(identity_),
          {identity_.rank, "it left the group with operations in flight"});
}

bool ShmBackend::advance_one(PendingCollective& collective) {
  if (!collective.advance(context_)) return false;
  collectives_.complete_oldest();
  bell_.ring_for_own();
  return true;
}

// Carries out collectives, oldest first, until one has to wait for a peer.
void ShmBackend::advance_queue() {
  while (!broken_) {
    PendingCollective* const oldest = collectives_.oldest();
    if (oldest == nullptr || !advance_one(*oldest)) return;
  }
}

void ShmBackend::advance_messages() {
  if (broken_ || !has_messages_.load()) return;
  std::vector<std::shared_ptr<ShmMessage>> posted;
  {
    MutexLock lock(mutex_);
    posted.swap(posted_);
  }
  for (auto& message : posted) matcher_.post(std::move(message));
  matcher_.advance();
  MutexLock lock(mutex_);
  has_messages_ = !matcher_.idle() || !posted_.empty();
}

void ShmBackend::advance_all() {
  advance_queue();
  advance_messages();
}

void ShmBackend::advance_or_give_up() try { advance_all(); } catch (...) {
  give_up_in_catch();
}

// Half of an operation may have been carried out: none can go on.
void ShmBackend::give_up_in_catch() {
  try {
    throw;
  } catch (const Mismatch& error) {
    give_up(std::current_exception(), {identity_.rank, error.what(), true});
  } catch (const std::exception& error) {
    give_up(std::current_exception(),
            {identity_.rank,
             fmt::format("its operation failed: {}", error.what())});
  }
}

// Advances unless another thread does.
bool ShmBackend::try_advance() {
  if (!progress_lock_.try_lock()) return false;
  const ProgressGuard held(progress_lock_, std::adopt_lock);
  advance_or_give_up();
  return true;
}

// A number that changes as operations complete; 0 if none is in flight.
std::uint64_t ShmBackend::state_of_flights() {
  if (broken_ || (collectives_.empty() && !has_messages_)) return 0;
  return collectives_.completed() + 1;
}

// Called by the progress thread alone. A waiting thread advances all operations
// and checks them.
std::uint64_t ShmBackend::tend() {
  end_duplicates();
  if (waiters_ > 0) return 0;
  try_advance();
  const std::uint64_t state = state_of_flights();
  if (state == 0 || Deadline::Clock::now() < next_look_) return state;
  next_look_ = Deadline::Clock::now() + check_interval_;
  check_in_flight();
  return state;
}

// Checks the deadlines, and the peers, of the operations that may be the first
// to fail.
void ShmBackend::check_in_flight() {
  const std::uint64_t oldest = collectives_.completed() + 1;
  if (is_in_flight(oldest))
    check_peers(collective(oldest), collective(oldest).deadline(),
                collective(oldest).begun());
  std::shared_ptr<ShmMessage> overdue;
  {
    const ProgressGuard progress_lock(progress_lock_);
    look_for_deaths();
    overdue = matcher_.overdue();
  }
  if (overdue)
    check_peers(arrival(*overdue), overdue->deadline, overdue->begun);
}

// The program may only poll its messages. A rank that left in good order ends
// no message for which no thread waits: it may not be needed.
void ShmBackend::look_for_deaths() {
  if (broken_ || !has_messages_) return;
  const std::vector<int> only_this_rank{identity_.rank};
  const auto gone = peer_status_.find(only_this_rank);
  if (!gone) return;
  advance_or_give_up();  // the last messages of a rank that has ended
  if (!broken_ && has_messages_)
    give_up(peer_status_.error_for("the group's messages", *gone), *gone);
}

void ShmBackend::note_thread() {
  const std::thread::id self = std::this_thread::get_id();
  std::thread::id user = user_.load(std::memory_order_relaxed);
  if (user == self) return;
  if (user != std::thread::id() || !user_.compare_exchange_strong(user, self))
    has_several_users_ = true;
}

void ShmBackend::wait_for(const WaitTarget& target,
                          std::optional<Deadline> deadline) {
  std::exception_ptr told;
  try {
    told = wait_until_settled(target, deadline);
  } catch (...) {
    end_after_exception(target);
    throw;
  }
  if (told) std::rethrow_exception(told);
  if (!target.complete()) std::rethrow_exception(error_of_all());
}

// An operation must not go on in memory whose owner has seen an exception.
// Called in a catch.
void ShmBackend::end_after_exception(const WaitTarget& target) {
  const ProgressGuard progress_lock(progress_lock_);
  if (!settled(target)) give_up_in_catch();
}

// Returns earlier with what Operation::meanwhile throws: its owner ends the
// group, and knows why.
std::exception_ptr ShmBackend::wait_until_settled(
    const WaitTarget& target, std::optional<Deadline> deadline) {
  const auto ready = [&] { return settled_after_try(target); };
  if (!ready()) {
    const Deadline own = target.deadline();
    const Deadline limit = deadline ? std::min(*deadline, own) : own;
    const Attended attended(*this);
    note_thread();
    AnnouncedWait announced(control_.rank(identity_.rank));
    const TimePoint begun = Deadline::Clock::now();
    while (!settled(target)) {
      const auto timeout = std::clamp<nanoseconds>(
          limit.remaining(), nanoseconds(1), nanoseconds(check_interval_));
      if (bell_.wait(ready, timeout)) continue;
      check_peers(target, limit, begun, &announced);
      check_in_flight();
      if (auto told = target.call_meanwhile()) return told;
    }
    if (target.complete()) announced.end();
  }
  return nullptr;
}

// Another thread may be advancing operations: this waits for it.
void ShmBackend::check_peers(const WaitTarget& target, Deadline deadline,
                             TimePoint waited_since, AnnouncedWait* announced) {
  const ProgressGuard progress_lock(progress_lock_);
  if (announced != nullptr && !has_several_users_ &&
      Deadline::Clock::now() - waited_since >= check_interval_)
    announced->renew(target.peer());
  check_peers(target);
  check_deadline(target, deadline, waited_since);
}

std::vector<int> ShmBackend::missing_of(const WaitTarget& target) {
  const ProgressGuard progress_lock(progress_lock_);
  advance_or_give_up();
  return missing_now(target);
}

void ShmBackend::check_peers() {
  const std::vector<int> only_this_rank{identity_.rank};
  if (const auto peer_exit = peer_status_.find(only_this_rank);
      peer_exit && !broken_)
    end_with(peer_status_.error_for("the group's work", *peer_exit),
             *peer_exit);
  if (broken_) std::rethrow_exception(error_of_all());
}

void ShmBackend::check_peers(const WaitTarget& target) {
  if (settled(target)) return;
  const auto peer_exit = peer_status_.find(
      missing_now(target),
      target.wants_any() ? PeerStatus::Need::kAnyOne : PeerStatus::Need::kEach);
  if (!peer_exit) return;
  advance_or_give_up();  // a peer may have completed it before it left
  if (settled(target)) return;
  give_up(peer_status_.error_for(target.describe_call(), *peer_exit),
          *peer_exit);
}

void ShmBackend::check_deadline(const WaitTarget& target, Deadline deadline,
                                TimePoint waited_since) {
  if (settled(target) || !deadline.expired()) return;
  advance_or_give_up();
  if (settled(target)) return;
  const std::string text = target.describe_timeout(context_, waited_since);
  give_up(std::make_exception_ptr(Timeout(text)),
          {identity_.rank, "it gave up waiting: " + text});
}

// A caller that continues after a Timeout or a PeerFailure must know that peers
// may still change its memory.
Error unprotected(const std::string& why, const Error& failure) {
  return Error(fmt::format(
      "{}\n  and:     peers can still write to the buffers of this operation: "
      "{}\n  next:    do not use these buffers again; end this process",
      why, failure.what()));
}

std::vector<int> ShmBackend::missing_now(const WaitTarget& target) {
  return broken_ ? std::vector<int>{} : target.missing(context_);
}

void ShmBackend::abort(std::string_view reason) noexcept {
  end_with(std::make_exception_ptr(
               Error(fmt::format("group \"{}\" was aborted on rank {}: {}",
                                 identity_.name, identity_.rank, reason))),
           {identity_.rank, std::string(reason)});
  end_duplicates();
}

void ShmBackend::end_with(const std::exception_ptr& error,
                          const PeerExit& why) {
  const ProgressGuard progress_lock(progress_lock_);
  give_up(error, why);
}

// Called once this has ended: ends the group and its other duplicates too, so
// that no rank waits in one of them for a rank that has given up in another.
void ShmBackend::end_duplicates() {
  if (!broken_ || ended_duplicates_.exchange(true)) return;
  std::exception_ptr error;
  PeerExit why;
  {
    MutexLock lock(mutex_);
    error = error_;
    why = why_;
  }
  connection_->end_members(error, why);
}

// The duplicate has its own control block behind the group's, and the same
// heaps.
std::shared_ptr<Backend> ShmBackend::duplicate(const GroupIdentity& identity,
                                               int number) {
  const std::size_t bytes = ControlView::bytes_for(identity_.size);
  const std::size_t offset = bytes * static_cast<std::size_t>(number);
  grow_shared_memory(connection_->control(), offset + bytes);
  auto mapping = map_shared_memory(connection_->control(), offset, bytes);
  const ControlView control(mapping->data(), identity.size);
  auto made = make_shared_in_own_process<ShmBackend>(
      identity, connection_, std::move(mapping),
      PeerHeaps(control, identity.rank, heaps_));
  connection_->add(*made);
  if (broken_) {  // perhaps even before it was added
    ended_duplicates_ = false;
    end_duplicates();
  }
  return made;
}

void ShmBackend::leave() noexcept {
  std::unique_ptr<ProgressThread> progress;
  {
    MutexLock lock(mutex_);
    progress = std::move(progress_);
  }
  progress.reset();  // its thread may be about to take the lock
  abandon_what_is_in_flight();
  {
    const ProgressGuard progress_lock(progress_lock_);
    MutexLock lock(mutex_);
    if (!error_) error_ = group_was_left(identity_);
    ended_duplicates_ = true;  // leaving one of them ends no other
    broken_ = true;
  }
  peer_status_.depart(Presence::kLeft, {identity_.rank, kLeftGroup});
  bell_.ring();
}

void ShmBackend::give_up(const std::exception_ptr& error, const PeerExit& why) {
  if (broken_) return;
  // Withdraws the memory first: a late peer may still write to the buffers, and
  // a caller that sees the error may free them.
  std::exception_ptr outcome = error;
  try {
    withdraw_memory(context_, peer_status_, collectives_.oldest());
  } catch (const Error& failure) {
    outcome = std::make_exception_ptr(unprotected(why.reason, failure));
  }
  {
    MutexLock lock(mutex_);
    error_ = outcome;
    why_ = why;
    broken_ = true;
  }
  peer_status_.depart(Presence::kAborted, why);
  bell_.ring();
}

}  // namespace

std::shared_ptr<Backend> make_shm_backend(const GroupIdentity& identity,
                                          Store& store,
                                          const Settings& settings) {
  auto heap = process_heap(
      {.bytes = settings.heap_bytes, .kept_bytes = settings.heap_kept_bytes});
  const LocalRank own{.heap = heap.get(),
                      .others = settings.token.empty() ? OtherUsers::kTurnedAway
                                                       : OtherUsers::kAdmitted};
  LocalPeers peers =
      exchange_local(identity, store, own, settings.rendezvous_timeout);
  auto mapping = map_shared_memory(peers.control, 0,
                                   ControlView::bytes_for(identity.size));
  const ControlView control(mapping->data(), identity.size);
  PeerHeaps heaps(control, identity.rank, std::move(heap), peers.heaps);
  auto connection = std::make_shared<ShmConnection>(std::move(peers));
  auto made = make_shared_in_own_process<ShmBackend>(
      identity, connection, std::move(mapping), std::move(heaps));
  connection->add(*made);
  return made;
}

}  // namespace lockstep
