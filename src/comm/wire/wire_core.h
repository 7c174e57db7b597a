// The state that the operations of one group share: its transport, the other
// ranks' last known states, and the waits for them.
//
// Threads: every method may be called from any thread; scratch() belongs to the
//          thread that carries out the group's collective.
// Errors:  waits throw WaitExpired, TransportError and FaultSeen, which
//          fault_error() turns into the user's errors.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/base/mutex.h"
#include "src/base/settings.h"
#include "src/comm/operation/backend.h"
#include "src/comm/rendezvous/group_fault.h"
#include "src/comm/wire/abort_notice.h"
#include "src/comm/wire/message_transport.h"
#include "src/comm/wire/scratch.h"
#include "src/comm/wire/wait_chain.h"

namespace lockstep {

// The deadline of an operation passed.
class WaitExpired : public Error {
 public:
  // `missing` names the awaited ranks if the core cannot know them.
  explicit WaitExpired(std::vector<int> missing = {})
      : Error("a deadline passed"), missing_(std::move(missing)) {}
  const std::vector<int>& missing() const { return missing_; }

 private:
  std::vector<int> missing_;
};

class WireCore {
 public:
  using Request = MessageTransport::Request;

  struct Parts {
    GroupIdentity identity;
    OperationCheck check = OperationCheck::kAll;
    std::vector<std::string> hosts{};  // of each rank
    // The store key of each rank's death; empty if the transport detects deaths
    // itself.
    std::vector<std::string> death_keys{};
    // A rank that waits, and for so long gets no answer from the store that
    // reports deaths, gives up.
    std::chrono::milliseconds store_patience{15000};
    // The store keys of each rank's end, for ranks to which there is no
    // connection; empty if the store does not report it.
    std::vector<std::string> ended_keys{};
    // Shared with the group's duplicates, like the state that ends the group.
    std::shared_ptr<MessageTransport> transport{};
    std::shared_ptr<GroupFault> fault{};
    // 0, or the number of the duplicate.
    int duplicate = 0;
  };
  explicit WireCore(Parts parts);
  // The core of a duplicate of `same`'s group: the same connections, other
  // channels.
  WireCore(const WireCore& same, const GroupIdentity& identity, int duplicate);
  ~WireCore();
  WireCore(const WireCore&) = delete;
  WireCore& operator=(const WireCore&) = delete;

  const GroupIdentity& identity() const { return parts_.identity; }
  int rank() const { return parts_.identity.rank; }
  int size() const { return parts_.identity.size; }
  OperationCheck check() const { return parts_.check; }
  MessageTransport& transport() { return *parts_.transport; }
  // Like the transport's, on the channels of this group or duplicate.
  Request send(const LockstepTransportMessage& message) {
    return parts_.transport->send(on_own_channel(message));
  }
  Request receive(const LockstepTransportMessage& message) {
    return parts_.transport->receive(on_own_channel(message));
  }
  Scratch& scratch() { return scratch_; }

  // Checks the group's state during a long wait.
  class PeerWatch {
   public:
    // For a wait for the ranks that expect() named.
    PeerWatch(WireCore& core, Deadline deadline);
    // For a wait for a message to or from `peer`; with kAnySource, for all
    // other ranks until none is left.
    PeerWatch(WireCore& core, Deadline deadline, int peer);
    // Throws when the deadline has passed, and what check_others() throws.
    void check();
    // At intervals it checks whether a message of Needed cannot come, or
    // another rank has written a fault or has died, and throws then; likewise
    // NetworkError when the store that would report a death has not answered
    // for Parts::store_patience.
    void check_others();
    Deadline deadline() const { return deadline_; }

   private:
    void check_needed();
    void check_peers();
    void look_for_unseen_deaths(Deadline deadline);
    void look_for_deaths(Deadline deadline);
    void check_store() const;
    std::vector<int> awaited() const;

    WireCore& core_;
    const Deadline deadline_;
    std::optional<int> peer_;
    const Deadline::Clock::time_point begun_ = Deadline::Clock::now();
    Deadline::Clock::time_point next_look_;
    Deadline::Clock::time_point next_check_of_needed_;
    // When it first saw that an unseen rank has died.
    std::optional<Deadline::Clock::time_point> unseen_death_;
  };

  // While it lives, a collective that waits for one rank also notices that
  // another one, which it needs as well, is gone.
  //
  // Threads: the thread that carries out the group's collective.
  class Needed {
   public:
    // Throws if a message that the collective needs cannot come or go.
    using Check = std::function<void()>;
    // The ranks that the collective waits for and to which this rank has no
    // connection.
    using Unseen = std::function<std::vector<int>()>;

    explicit Needed(WireCore& core, Check check, Unseen unseen = nullptr)
        : core_(core),
          outer_(core.needed_),
          check_(std::move(check)),
          unseen_(std::move(unseen)) {
      core.needed_ = this;
    }
    ~Needed() { core_.needed_ = outer_; }
    Needed(const Needed&) = delete;
    Needed& operator=(const Needed&) = delete;

   private:
    friend class PeerWatch;
    std::vector<int> unseen() const {
      if (unseen_) return unseen_();
      return outer_ == nullptr ? std::vector<int>{} : outer_->unseen();
    }
    WireCore& core_;
    const Needed* const outer_;
    const Check check_;
    const Unseen unseen_;
  };

  // Waits for `request`.
  void wait(Request& request, Deadline deadline);

  // Notes that the collective begins, and ceases, to wait for a rank (Arrivals
  // does that for its receives). A rank that holds up another rank's part is
  // not counted twice.
  void expect(int peer) { awaited_[index(peer)].fetch_add(1); }
  void expect_nobody();
  void arrived(int peer) { awaited_[index(peer)].fetch_sub(1); }
  // Waits for all `requests`.
  void wait_for_all(std::span<Request* const> requests, Deadline deadline);
  // Notes the peers of the messages that the collective waits for.
  void held_up_by(std::vector<int> peers);
  // Sets the function that names the awaited ranks while a collective waits
  // inside the host. Null: it does not.
  void waits_inside(std::function<std::vector<int>()> missing);
  // The ranks that the collective waits for; once all have brought their parts,
  // those that do not receive or pass on elements.
  std::vector<int> missing() const;
  // The same for `operation`, which may be a message.
  std::vector<int> missing_in(const Operation& operation) const;

  // What the ranks of this host find out about each other without the store and
  // without connections.
  struct Host {
    // Throws TransportError or FaultSeen if another rank has died or given up.
    std::function<void()> check = nullptr;
    // This rank gives up because of the fault.
    std::function<void(const Fault&)> tell = nullptr;
  };
  // Call it before the first operation.
  void know_host(Host host) { host_ = std::move(host); }

  // The fault that another rank has written as the cause of the group's end.
  std::optional<Fault> look_for_fault(
      Deadline deadline = GroupFault::kStorePatience);

  // `peer` sends nothing more: a wait for any source waits only for the others,
  // and a Timeout names `peer` first.
  void lost(int peer) { lost_[index(peer)] = true; }

  // Whether `peer` has died, as far as the connection to it tells: it has ended
  // without a word.
  bool has_died(int peer) {
    return abort_notice_ != nullptr && abort_notice_->has_died(peer);
  }

  // Notes the last call of `peer`.
  void saw(int peer, const Signature& signature);
  // Every rank's call had `signature`.
  void saw_all(const Signature& signature);
  // The lines of a Timeout that name the missing ranks.
  std::string describe_missing(const std::vector<int>& ranks) const;
  // "rank 5 on node-b", "rank 1 (rank 5 of the job) on node-b".
  std::string name_of_rank(int rank) const;

  // The names of the first of `ranks`, with commas.
  std::string names_of(const std::vector<int>& ranks) const;

  struct Failure {
    std::exception_ptr error;  // which `operation` threw
    const Operation& operation;
    Deadline::Clock::time_point begun;
    // Where another thread carries the operation out: whether it has completed.
    std::function<bool()> completed = nullptr;
  };
  // Ends the group because of `failure`, and returns the error for its callers.
  // Afterwards no thread touches buffers any more. Null if an operation whose
  // deadline has passed completes while this rank finds out who is late: the
  // group goes on then.
  std::exception_ptr give_up(const Failure& failure) noexcept;
  // give_up() no longer waits to find out who is late.
  void hurry() noexcept { chain_.stop(); }
  // The same because this rank leaves while operations are in flight.
  void leave_at_once(const std::string& reason) noexcept;
  // This rank leaves, in good order unless the group has ended. The store is
  // not used any more.
  void leave() noexcept;

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  LockstepTransportMessage on_own_channel(
      LockstepTransportMessage message) const {
    message.channel += parts_.duplicate * kTransportChannels;
    return message;
  }
  std::uint64_t sequence_of(const Operation& operation) const;
  // Why this rank gives up.
  struct Cause {
    Fault fault;
    // This rank itself saw a connection end, and has no notice of why.
    bool is_guess = false;
  };
  Cause cause_of(const std::exception_ptr& error, const Operation& operation,
                 const std::string& expired);
  std::exception_ptr error_of(const Fault& fault, const Operation& operation);
  std::exception_ptr own_error(const Failure& failure) const;
  std::string describe_loss(int peer, const std::string& why) const;
  std::vector<int> others() const;
  std::string describe_timeout(const Operation& operation,
                               Deadline::Clock::time_point begun,
                               const std::vector<int>& ranks) const;
  AwaitedRanks awaited_at(const Failure& failure) const;
  bool find_late_ranks(AwaitedRanks& awaited, const Failure& failure,
                       Deadline patience) noexcept;
  Fault end_group(const Cause& mine, Deadline patience) noexcept;
  Fault cause_of_loss(const Fault& mine) noexcept;
  std::optional<Fault> fault_told(bool is_sure) noexcept;
  std::optional<Fault> fault_on_host();
  std::exception_ptr error_beside(const Fault& fault, const Failure& failure,
                                  AwaitedRanks awaited, Deadline patience);

  Parts parts_;
  Host host_;
  // Set if the transport itself detects the end of a connection.
  std::shared_ptr<AbortNotice> abort_notice_;
  Scratch scratch_;
  const Needed* needed_ = nullptr;  // the collective's
  std::vector<std::atomic<int>> awaited_;
  std::vector<std::atomic<bool>> lost_;
  mutable Mutex mutex_;
  std::vector<int> held_up_by_ LOCKSTEP_GUARDED_BY(mutex_);
  std::function<std::vector<int>()> missing_inside_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Signature> last_seen_ LOCKSTEP_GUARDED_BY(mutex_);
  Signature last_seen_of_all_ LOCKSTEP_GUARDED_BY(mutex_);
  WaitChain chain_;
};

}  // namespace lockstep
