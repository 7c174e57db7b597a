// Messages between two ranks of a wire group.
//
// A sender writes an envelope to the receiver: a description of the message,
// and the elements themselves if they are few. Envelopes are received even
// before their receive is posted, and matched with receives by source and tag,
// in order; those without a receive are kept. The elements of long messages
// follow once their receive is known, directly into its buffer.
//
// Threads: every method may be called from any thread. One of the waiting
//          threads advances all messages; while none waits, the object's own
//          thread does.
// Errors:  those of WireCore's waits, and Mismatch for a message that does not
//          match its receive: that one ends the group though no thread waits
//          for the receive.
// Source:  MPI's matching rules (MPI 4.0, section 3.5).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/operation/posted_message.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

// WireMessageMatcher owns all members that it adds.
struct WireMessage : PostedMessage {
  using PostedMessage::PostedMessage;

  std::vector<std::byte> envelope;  // of a send
  WireCore::Request envelope_request;
  WireCore::Request payload_request;
  std::exception_ptr error;
};

class WireMessageMatcher {
 public:
  using Pointer = std::shared_ptr<WireMessage>;

  // `fail` ends the group because of `error` in a message, and calls stop(). A
  // thread that waits for a message, or the object's own, calls it.
  using Fail = std::function<void(const Pointer& message,
                                  const std::exception_ptr& error)>;
  WireMessageMatcher(WireCore& core, Fail fail);
  ~WireMessageMatcher();

  void post(const Pointer& message);

  // Waits until `message` is done.
  void wait(const Pointer& message, Deadline deadline);

  // Whether wait() would return or throw at once.
  bool done(const Pointer& message);

  // Delivers nothing more: every pending message ends with `error`, and no
  // thread touches its buffer afterwards. Call once the transport is closed.
  void stop(const std::exception_ptr& error);

 private:
  static constexpr std::size_t kEnvelopeSlots = 4;  // received ahead, from each

  // The first part of a message.
  struct Envelope {
    Signature signature{};
    std::int32_t tag = 0;
    std::int32_t reserved = 0;
  };
  static constexpr std::size_t kShortBytes = std::size_t{4} << 10;
  static constexpr std::size_t kEnvelopeBytes = sizeof(Envelope) + kShortBytes;

  struct Inbox {
    // Null until that rank is connected. The memory, a place for each slot, is
    // not initialised: an unused place takes none.
    std::unique_ptr<std::array<WireCore::Request, kEnvelopeSlots>> slots{};
    std::unique_ptr<std::byte[]> memory{};
    std::size_t oldest = 0;
    // Why nothing comes except what is in the slots; why nothing more will.
    std::exception_ptr ending{};
    std::exception_ptr lost{};
    bool own_trouble = false;  // of this rank, is why
    bool has_died = false;     // its rank, is why
    WireCore::Request& front() { return (*slots)[oldest]; }
    std::byte* place(std::size_t slot) const {
      return memory.get() + slot * kEnvelopeBytes;
    }
  };
  // An envelope without a matching receive.
  struct Kept {
    int from = 0;
    Envelope envelope;
    std::vector<std::byte> elements;  // of a short message
  };

  Inbox& inbox(int from) LOCKSTEP_REQUIRES(mutex_) {
    return inboxes_[static_cast<std::size_t>(from)];
  }
  void open_inbox(int from);
  void post_slot(int from, std::size_t slot) LOCKSTEP_REQUIRES(mutex_);
  void send(WireMessage& message);
  void receive(const Pointer& message) LOCKSTEP_REQUIRES(mutex_);
  void connect_senders(int peer);
  void take_envelopes(int from) LOCKSTEP_REQUIRES(mutex_);
  void sort(int from, const Envelope& envelope, const std::byte* elements)
      LOCKSTEP_REQUIRES(mutex_);
  void deliver(const Pointer& message, int from, const Envelope& envelope,
               const std::byte* elements) LOCKSTEP_REQUIRES(mutex_);
  void report(const Pointer& message, const std::exception_ptr& error)
      LOCKSTEP_REQUIRES(mutex_);
  void report_misfit() LOCKSTEP_REQUIRES(mutex_);
  void report_overdue() LOCKSTEP_REQUIRES(mutex_);
  bool is_idle() const LOCKSTEP_REQUIRES(mutex_) {
    return wanted_.empty() && moving_.empty() && !misfit_;
  }
  void wake_progress_thread() LOCKSTEP_REQUIRES(mutex_);
  void advance() LOCKSTEP_REQUIRES(mutex_);
  void advance(WireMessage& message) LOCKSTEP_REQUIRES(mutex_);
  // Null if its rank is not connected yet.
  WireCore::Request* request_to_wait_for(WireMessage& message)
      LOCKSTEP_REQUIRES(mutex_);
  void pause(MutexLock& lock, WireMessage& message,
             std::chrono::microseconds timeout) LOCKSTEP_REQUIRES(mutex_);
  void run_progress_thread();
  static bool settled(const WireMessage& message);

  WireCore& core_;
  const Fail fail_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  // Whether a thread waits on requests; they belong to that thread then.
  bool pumped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::atomic<int> waiters_{0};
  int next_inbox_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<Inbox> inboxes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<Kept> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<Pointer> wanted_ LOCKSTEP_GUARDED_BY(mutex_);  // not matched yet
  std::list<Pointer> moving_ LOCKSTEP_GUARDED_BY(mutex_);  // matched, or sends

  // A receive whose message does not fit, until fail_ knows it.
  Pointer misfit_ LOCKSTEP_GUARDED_BY(mutex_);

  std::condition_variable_any progress_wakes_;
  bool parked_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Deadline::Clock::time_point next_check_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread progress_thread_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<MessageTransport::ConnectionWatch> watch_;
};

}  // namespace lockstep
