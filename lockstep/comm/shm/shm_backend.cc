#include "lockstep/comm/shm/shm_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/shm/flight.h"
#include "lockstep/comm/shm/local_exchange.h"
#include "lockstep/comm/shm/progress.h"
#include "lockstep/net/process_handle.h"

namespace lockstep {
namespace {

using std::chrono::nanoseconds;

// How long a waiter sleeps before it looks whether its peers are alive.
constexpr std::chrono::milliseconds kLookAround{50};

class ShmBackend : public Backend,
                   public PendingWork,
                   public std::enable_shared_from_this<ShmBackend> {
 public:
  ShmBackend(const GroupIdentity& identity, Store& store,
             const Settings& settings)
      : identity_(identity),
        heap_(process_heap(settings.heap_bytes)),
        peers_(exchange_local(identity, store, heap_.get(),
                              settings.rendezvous_timeout)),
        mapping_(map_shared_memory(peers_.control)),
        control_(mapping_->data(), identity.size),
        bell_(control_.block(), cores_for(identity.size)),
        rounds_(control_, identity.rank, identity.size, bell_) {
    context_ = {identity, control_, &rounds_, heap_, {}};
    map_peer_heaps();
  }

  ~ShmBackend() override {
    progress_.reset();
    abandon_what_is_in_flight();
    depart(Presence::kLeft, {identity_.rank, "it left the group"});
  }

  std::string_view name() const override { return "shm"; }

  bool supports(const Operation& operation) const override {
    const auto on_cpu = [](const Buffer& buffer) {
      return buffer.device.kind == DeviceKind::kCpu;
    };
    return !is_point_to_point(operation.kind) &&
           std::ranges::all_of(operation.inputs, on_cpu) &&
           std::ranges::all_of(operation.outputs, on_cpu);
  }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    if (heap_ && !heap_->detached())
      if (auto block = heap_->allocate(bytes)) return block;
    return Backend::allocate(bytes);
  }

  Work start(const Operation& operation) override;
  void abort(std::string_view reason) noexcept override;

  void wait(std::uint64_t ticket, std::optional<Deadline> deadline) override;
  bool done(std::uint64_t ticket) override { return settled_after_try(ticket); }
  std::vector<int> missing(std::uint64_t ticket) override;

 private:
  static Doorbell::Cores cores_for(int ranks) {
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    return ranks <= cores ? Doorbell::Cores::kEnough
                          : Doorbell::Cores::kCrowded;
  }

  // Why a peer can be waited for no longer.
  struct Departure {
    int culprit = 0;
    std::string reason;
  };

  void map_peer_heaps();
  void abandon_what_is_in_flight();
  void check_heap() const;
  void advance_all() LOCKSTEP_REQUIRES(engine_);
  void advance_or_give_up() LOCKSTEP_REQUIRES(engine_);
  bool settled(std::uint64_t ticket) const {
    return completed_.load() >= ticket || broken_;
  }
  bool settled_after_try(std::uint64_t ticket);
  std::uint64_t tend();
  std::uint64_t oldest_ticket();
  std::optional<Departure> find_departure() const;
  void check_peers(std::uint64_t ticket) LOCKSTEP_REQUIRES(engine_);
  void check_deadline(std::uint64_t ticket, Deadline deadline)
      LOCKSTEP_REQUIRES(engine_);
  // Whoever gives up holds the engine: nobody of this process touches the
  // buffers of the operations any more.
  void give_up(const std::exception_ptr& error, const Departure& why)
      LOCKSTEP_REQUIRES(engine_);
  void depart(Presence presence, const Departure& why) noexcept;
  std::vector<int> missing_now(std::uint64_t ticket) LOCKSTEP_REQUIRES(engine_);
  std::string describe_timeout(std::uint64_t ticket) LOCKSTEP_REQUIRES(engine_);
  // The operation behind a ticket; null once it is complete.
  Flight* flight_of(std::uint64_t ticket) LOCKSTEP_REQUIRES(queue_mutex_);
  std::string describe_ticket(std::uint64_t ticket);
  std::exception_ptr error() {
    MutexLock lock(queue_mutex_);
    return error_;
  }

  const GroupIdentity identity_;
  std::shared_ptr<Heap> heap_;
  LocalPeers peers_;
  std::shared_ptr<SharedMapping> mapping_;
  ControlView control_;
  Doorbell bell_;
  Rounds rounds_;
  bool has_foreign_peers_ = false;

  // Whoever holds `engine_` advances the oldest operation; never held while
  // waiting. `queue_mutex_` is only held for a few instructions, so that
  // starting an operation does not wait for another to be carried out. Where
  // both are held, `engine_` was taken first.
  Mutex engine_;
  ShmContext context_ LOCKSTEP_GUARDED_BY(engine_);
  Mutex queue_mutex_;
  std::deque<std::unique_ptr<Flight>> queue_ LOCKSTEP_GUARDED_BY(queue_mutex_);
  std::vector<std::unique_ptr<Flight>> spare_ LOCKSTEP_GUARDED_BY(queue_mutex_);
  std::uint64_t started_ LOCKSTEP_GUARDED_BY(queue_mutex_) = 0;
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(queue_mutex_);
  // Tickets up to this one are complete.
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> broken_{false};
  Deadline::Clock::time_point next_look_;  // the progress thread's
  std::unique_ptr<Progress> progress_ LOCKSTEP_GUARDED_BY(queue_mutex_);
};

void ShmBackend::map_peer_heaps() {
  std::vector<std::shared_ptr<SharedMapping>> heaps;
  try {
    for (const FileDescriptor& heap : peers_.heaps)
      if (heap) heaps.push_back(map_shared_memory(heap));
  } catch (const SystemError&) {
    heaps.clear();  // no address space for them: everything is staged
  }
  const bool complete = heap_ && heaps.size() == peers_.heaps.size();
  for (std::size_t r = 0; complete && r < heaps.size(); ++r)
    if (!heap_->offset_of(heaps[r]->data(), 1)) has_foreign_peers_ = true;
  if (!complete) has_foreign_peers_ = heap_ != nullptr;
  MutexLock lock(engine_);
  if (complete) context_.peer_heaps = std::move(heaps);
}

Work ShmBackend::start(const Operation& operation) {
  std::uint64_t ticket = 0;
  {
    MutexLock lock(queue_mutex_);
    if (error_) return Work::failed(error_);
    std::unique_ptr<Flight> flight;
    if (spare_.empty()) {
      flight = std::make_unique<Flight>();
    } else {
      flight = std::move(spare_.back());
      spare_.pop_back();
    }
    flight->begin(operation, identity_);
    queue_.push_back(std::move(flight));
    ticket = ++started_;
  }
  if (settled_after_try(ticket))
    return completed_.load() >= ticket ? Work() : Work::failed(error());
  MutexLock lock(queue_mutex_);
  if (!progress_)
    progress_ = std::make_unique<Progress>([this] { return tend(); });
  progress_->notify();
  return Work(shared_from_this(), ticket);
}

// Peers may still reduce into the memory of an operation that nobody waited
// for.
void ShmBackend::abandon_what_is_in_flight() {
  MutexLock engine(engine_);
  if (oldest_ticket() == 0) return;
  give_up(std::make_exception_ptr(Error("the group was destroyed")),
          {identity_.rank, "it left the group with operations in flight"});
}

void ShmBackend::check_heap() const {
  if (!heap_ || !heap_->detached()) return;
  throw Error(
      "another group of this process failed, so its shared memory was made "
      "private\n  next:    make this group anew as well");
}

// Carries operations out, oldest first, until one has to wait for a peer.
void ShmBackend::advance_all() {
  while (!broken_) {
    Flight* oldest = nullptr;
    {
      MutexLock lock(queue_mutex_);
      if (queue_.empty()) return;
      oldest = queue_.front().get();
    }
    check_heap();
    if (!oldest->advance(context_)) return;
    check_heap();  // a heap detached meanwhile does not hold what peers wrote
    MutexLock lock(queue_mutex_);
    spare_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    completed_.fetch_add(1);
    bell_.ring();  // for other threads of this process
  }
}

void ShmBackend::advance_or_give_up() {
  try {
    advance_all();
  } catch (...) {
    give_up(std::current_exception(),
            {identity_.rank, "its operation failed; see its log"});
  }
}

bool ShmBackend::settled_after_try(std::uint64_t ticket) {
  if (settled(ticket)) return true;
  if (!engine_.try_lock()) return false;
  advance_or_give_up();
  engine_.unlock();
  return settled(ticket);
}

std::uint64_t ShmBackend::oldest_ticket() {
  MutexLock lock(queue_mutex_);
  return queue_.empty() || broken_ ? 0 : completed_.load() + 1;
}

// Called by the progress thread alone.
std::uint64_t ShmBackend::tend() {
  settled_after_try(~std::uint64_t{0});
  const std::uint64_t oldest = oldest_ticket();
  if (oldest == 0 || Deadline::Clock::now() < next_look_) return oldest;
  next_look_ = Deadline::Clock::now() + kLookAround;
  MutexLock engine(engine_);
  check_peers(oldest);
  Deadline deadline = Deadline::never();
  {
    MutexLock lock(queue_mutex_);
    if (const Flight* flight = flight_of(oldest)) deadline = flight->deadline();
  }
  check_deadline(oldest, deadline);
  return oldest;
}

Flight* ShmBackend::flight_of(std::uint64_t ticket) {
  const std::uint64_t done = completed_.load();
  return ticket <= done ? nullptr : queue_[ticket - done - 1].get();
}

std::string ShmBackend::describe_ticket(std::uint64_t ticket) {
  MutexLock lock(queue_mutex_);
  const Flight* flight = flight_of(ticket);
  return flight == nullptr ? "an operation" : describe(flight->operation());
}

void ShmBackend::wait(std::uint64_t ticket, std::optional<Deadline> deadline) {
  const auto ready = [&] { return settled_after_try(ticket); };
  if (!ready() && !deadline) {
    MutexLock lock(queue_mutex_);
    const Flight* flight = flight_of(ticket);
    deadline = flight == nullptr ? Deadline::never() : flight->deadline();
  }
  while (!settled(ticket)) {
    const auto patience = std::clamp<nanoseconds>(
        deadline->remaining(), nanoseconds(1), nanoseconds(kLookAround));
    if (bell_.wait(ready, patience)) break;
    // Another thread may be in the middle of carrying the operation out: what
    // follows waits for it.
    MutexLock engine(engine_);
    check_peers(ticket);
    check_deadline(ticket, *deadline);
  }
  if (completed_.load() < ticket) std::rethrow_exception(error());
}

std::vector<int> ShmBackend::missing(std::uint64_t ticket) {
  MutexLock engine(engine_);
  advance_or_give_up();
  return missing_now(ticket);
}

std::vector<int> ShmBackend::missing_now(std::uint64_t ticket) {
  if (settled(ticket)) return {};
  MutexLock lock(queue_mutex_);
  const Flight* flight = flight_of(ticket);
  return flight == nullptr ? std::vector<int>{} : flight->missing(context_);
}

// A process that ended is a better explanation than a rank that gave up
// because of it.
std::optional<ShmBackend::Departure> ShmBackend::find_departure() const {
  std::optional<Departure> found;
  for (int r = 0; r < identity_.size; ++r) {
    if (r == identity_.rank) continue;
    const RankArea& area = control_.rank(r);
    const Presence presence = area.presence.load();
    // A process may say why it leaves and end between the two looks.
    if (presence == Presence::kPresent &&
        has_exited(peers_.processes[static_cast<std::size_t>(r)]) &&
        area.presence.load() == Presence::kPresent)
      return Departure{r, "its process ended"};
    if (area.presence.load() != Presence::kPresent && !found)
      found = {area.culprit, area.reason};
  }
  return found;
}

void ShmBackend::check_peers(std::uint64_t ticket) {
  const auto departure = find_departure();
  if (!departure) return;
  advance_or_give_up();  // what a peer brought before it went is there
  if (settled(ticket)) return;
  const std::string text = fmt::format(
      "{} failed on rank {} of {} (group \"{}\"): rank {} is gone: {}\n"
      "  next:    read rank {}'s log; the group is unusable, make a new one",
      describe_ticket(ticket), identity_.rank, identity_.size, identity_.name,
      departure->culprit, departure->reason, departure->culprit);
  give_up(std::make_exception_ptr(PeerFailure(departure->culprit, text)),
          *departure);
}

void ShmBackend::check_deadline(std::uint64_t ticket, Deadline deadline) {
  if (!deadline.expired()) return;
  advance_or_give_up();
  if (settled(ticket)) return;
  const std::string text = describe_timeout(ticket);
  give_up(std::make_exception_ptr(Timeout(text)),
          {identity_.rank, "it gave up waiting: " + text});
}

std::string ShmBackend::describe_timeout(std::uint64_t ticket) {
  const std::vector<int> ranks = missing_now(ticket);
  std::string text = describe_ticket(ticket);
  double seconds = 0;
  {
    MutexLock lock(queue_mutex_);
    if (const Flight* flight = flight_of(ticket))
      seconds = std::chrono::duration<double>(Deadline::Clock::now() -
                                              flight->begun())
                    .count();
  }
  text +=
      fmt::format(" timed out after {:.1f} s on rank {} of {} (group \"{}\")",
                  seconds, identity_.rank, identity_.size, identity_.name);
  for (const int rank : ranks)
    text += fmt::format("\n  missing: rank {}, last seen in {}", rank,
                        rounds_.last_seen(rank));
  if (ranks.empty())
    text += "\n  missing: no rank; one of them stopped in the middle";
  return text +
         "\n  likely:  a missing rank is slow or dead, or called another "
         "collective in this place"
         "\n  next:    read the missing ranks' logs; LOCKSTEP_TIMEOUT sets how "
         "long to wait, in seconds";
}

void ShmBackend::abort(std::string_view reason) noexcept {
  MutexLock engine(engine_);
  give_up(std::make_exception_ptr(
              Error(fmt::format("group \"{}\" was aborted on rank {}: {}",
                                identity_.name, identity_.rank, reason))),
          {identity_.rank, std::string(reason)});
}

void ShmBackend::give_up(const std::exception_ptr& error,
                         const Departure& why) {
  if (broken_) return;
  // First the heap: a late peer may still be writing to what it was asked to
  // reduce, and whoever sees the error may free it.
  try {
    if (has_foreign_peers_) heap_->detach();
  } catch (const SystemError& failure) {
    log(LogLevel::kError, failure.what());
  }
  {
    MutexLock lock(queue_mutex_);
    error_ = error;
    broken_ = true;
  }
  depart(Presence::kAborted, why);
}

void ShmBackend::depart(Presence presence, const Departure& why) noexcept {
  RankArea& area = control_.rank(identity_.rank);
  if (area.presence.load() != Presence::kPresent) return;
  area.culprit = why.culprit;
  const std::size_t length =
      std::min(why.reason.size(), sizeof area.reason - 1);
  std::memcpy(area.reason, why.reason.data(), length);
  area.presence.store(presence);
  bell_.ring();
}

}  // namespace

std::shared_ptr<Backend> make_shm_backend(const GroupIdentity& identity,
                                          Store& store,
                                          const Settings& settings) {
  return std::make_shared<ShmBackend>(identity, store, settings);
}

}  // namespace lockstep
