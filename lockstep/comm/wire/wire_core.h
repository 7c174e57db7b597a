// What the operations of one group share: its transport, what is known of the
// other ranks, and how to wait for them.
//
// Threads: every method may be called from any thread; scratch() belongs to
//          whoever carries out the group's collective.
// Errors:  waits throw WaitExpired, TransportError and FaultSeen, of which
//          fault_error() makes what users see.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/comm/wire/group_fault.h"
#include "lockstep/comm/wire/last_words.h"
#include "lockstep/comm/wire/message_transport.h"
#include "lockstep/comm/wire/scratch.h"

namespace lockstep {

// The deadline of an operation passed.
class WaitExpired : public Error {
 public:
  // `missing` where the core cannot know who was waited for.
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
    // Of each rank, where its death is written; empty where the transport sees
    // it by itself.
    std::vector<std::string> death_keys{};
    // Shared with the group's duplicates, as is what ends the group.
    std::shared_ptr<MessageTransport> transport{};
    std::shared_ptr<GroupFault> fault{};
    // 0, or which duplicate it is.
    int duplicate = 0;
  };
  explicit WireCore(Parts parts);
  // Of a duplicate of `same`'s group: the same connections, other channels.
  WireCore(const WireCore& same, const GroupIdentity& identity, int duplicate);
  ~WireCore();
  WireCore(const WireCore&) = delete;
  WireCore& operator=(const WireCore&) = delete;

  const GroupIdentity& identity() const { return parts_.identity; }
  int rank() const { return parts_.identity.rank; }
  int size() const { return parts_.identity.size; }
  OperationCheck check() const { return parts_.check; }
  MessageTransport& transport() { return *parts_.transport; }
  // As the transport's, on the channels of this group or duplicate.
  Request send(const LockstepTransportMessage& message) {
    return parts_.transport->send(on_own_channel(message));
  }
  Request receive(const LockstepTransportMessage& message) {
    return parts_.transport->receive(on_own_channel(message));
  }
  Scratch& scratch() { return scratch_; }

  // Kept by whoever waits for long.
  class Vigil {
   public:
    // For those that expect() named.
    Vigil(WireCore& core, Deadline deadline);
    // For a message to or from `peer`; of kAnySource, for all others until
    // none is left.
    Vigil(WireCore& core, Deadline deadline, int peer);
    // Throws when the deadline has passed or, looked at now and then, another
    // rank has written a fault down, or is known to have died.
    void check();
    Deadline deadline() const { return deadline_; }

   private:
    void look_around();
    void look_for_deaths();
    std::vector<int> awaited() const;

    WireCore& core_;
    const Deadline deadline_;
    std::optional<int> peer_;
    Deadline::Clock::time_point next_look_;
  };

  // Waits for `request`.
  void wait(Request& request, Deadline deadline);

  // The same for a receive from `peer` without which nothing can go on.
  void wait_for_peer(Request& request, int peer, Deadline deadline);
  // Says for whom the collective begins, and ceases, to wait. A rank without
  // which another cannot bring its part is not waited for twice.
  void expect(int peer) { awaited_[index(peer)].fetch_add(1); }
  void expect_nobody();
  void arrived(int peer) { awaited_[index(peer)].fetch_sub(1); }
  // Waits for all of them.
  void wait_for_all(std::span<Request* const> requests, Deadline deadline);
  // Says to and from whom the messages are that are waited for.
  void held_up_by(std::vector<int> peers);
  // While a collective waits inside the host: tells for whom. Null: it does
  // not.
  void waits_inside(std::function<std::vector<int>()> missing);
  // The ranks that are waited for; where all have brought their parts, those
  // that do not take, or pass on, what they must.
  std::vector<int> missing() const;
  // The same for `operation`, which may be a message.
  std::vector<int> missing_in(const Operation& operation) const;

  // What another rank has written down as the end of the group.
  std::optional<Fault> look_for_fault();

  // Nothing more comes from `peer`: whoever waits for anybody waits for the
  // others, and a Timeout names it first.
  void lost(int peer) { lost_[index(peer)] = true; }

  // From now on a rank that gives up says for whom it waits, and follows what
  // others say of themselves to the ranks that wait for nobody: where some wait
  // inside their host, only so others learn for whom. Before the first wait.
  void follow_waits() { follows_waits_ = true; }

  // Remembers what `peer` called last.
  void saw(int peer, const Signature& signature);
  // The lines of a timeout that say who is missing.
  std::string describe_missing(const std::vector<int>& ranks) const;
  // "rank 5 on node-b", "rank 1 (rank 5 of the job) on node-b".
  std::string name_of_rank(int rank) const;

  // Ends the group because of `error`, which was thrown while `operation` was
  // carried out, and returns the error that its callers get. Nothing touches
  // buffers any more afterwards.
  std::exception_ptr give_up(const std::exception_ptr& error,
                             const Operation& operation,
                             Deadline::Clock::time_point begun) noexcept;
  // The same because this rank goes while something is in flight.
  void leave_at_once(const std::string& reason) noexcept;
  // This rank goes, in good order unless the group has ended. The store is not
  // used any more.
  void leave() noexcept;

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  LockstepTransportMessage on_own_channel(
      LockstepTransportMessage message) const {
    message.channel += parts_.duplicate * kTransportChannels;
    return message;
  }
  std::uint64_t sequence_of(const Operation& operation) const;
  Fault fault_of(const std::exception_ptr& error, const Operation& operation,
                 const std::string& expired);
  std::exception_ptr error_of(const Fault& fault, const Operation& operation);
  std::vector<int> others() const;
  std::string describe_timeout(const Operation& operation,
                               Deadline::Clock::time_point begun,
                               const std::vector<int>& ranks) const;
  std::vector<int> awaited_by_all(const std::vector<int>& ranks) const;

  Parts parts_;
  // Where the transport sees by itself that a connection ends.
  std::shared_ptr<LastWords> last_words_;
  bool follows_waits_ = false;
  Scratch scratch_;
  std::vector<std::atomic<int>> awaited_;
  std::vector<std::atomic<bool>> lost_;
  mutable Mutex mutex_;
  std::vector<int> held_up_by_ LOCKSTEP_GUARDED_BY(mutex_);
  std::function<std::vector<int>()> missing_inside_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Signature> last_seen_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
