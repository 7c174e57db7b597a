#include "src/comm/wire/wire_message_matcher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "src/comm/operation/peer_checks.h"
#include "src/comm/operation/start_thread.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

// How long one wait for a message lasts. While several messages may come, or
// other threads wait, it is short at first and then longer.
constexpr microseconds kShortestPause = 100us;
constexpr microseconds kLongestPause = 2ms;
constexpr microseconds kLonePause = 20ms;
// How long messages stay pending without a waiting thread before the background
// thread advances them.
constexpr microseconds kUnwatched = 500us;

std::size_t bytes_of(const Signature& signature) {
  return static_cast<std::size_t>(signature.elements) *
         size_of(static_cast<DataType>(signature.type));
}

// A message's number among those of its sender, as a tag.
int payload_tag(const Signature& signature) {
  return static_cast<int>(signature.sequence & 0x7fffffff);
}

}  // namespace

WireMessageMatcher::WireMessageMatcher(WireCore& core, Fail fail)
    : core_(core),
      fail_(std::move(fail)),
      inboxes_(static_cast<std::size_t>(core.size())) {
  watch_.emplace(core.transport(), [this](int from) { open_inbox(from); });
}

void WireMessageMatcher::open_inbox(int from) {
  const MutexLock lock(mutex_);
  Inbox& inbox = this->inbox(from);
  if (inbox.slots || stopping_) return;
  inbox.slots =
      std::make_unique<std::array<WireCore::Request, kEnvelopeSlots>>();
  inbox.memory = std::make_unique_for_overwrite<std::byte[]>(kEnvelopeSlots *
                                                             kEnvelopeBytes);
  for (std::size_t slot = 0; slot < kEnvelopeSlots; ++slot)
    post_slot(from, slot);
  changed_.notify_all();
}

WireMessageMatcher::~WireMessageMatcher() {
  std::thread progress_thread;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    progress_thread.swap(progress_thread_);
    progress_wakes_.notify_all();
  }
  if (progress_thread.joinable()) progress_thread.join();
  watch_.reset();
  // An envelope that comes now must not be written to the freed slots.
  core_.transport().leave();
}

// A rank that has left sends nothing more, which alone is not an error.
void WireMessageMatcher::post_slot(int from, std::size_t slot) {
  Inbox& inbox = this->inbox(from);
  try {
    inbox.slots->at(slot) = core_.receive(
        {from, kChannelEnvelope, 0, inbox.place(slot), kEnvelopeBytes});
  } catch (const TransportError&) {
    inbox.ending = std::current_exception();
  }
}

bool WireMessageMatcher::settled(const WireMessage& message) {
  return message.done || message.error;
}

void WireMessageMatcher::post(const Pointer& message) {
  const MutexLock lock(mutex_);
  if (message->operation.kind == OperationKind::kReceive) {
    receive(message);
  } else {
    try {
      send(*message);
      advance(*message);
    } catch (const TransportError&) {
      message->error = std::current_exception();
    }
    if (!settled(*message)) moving_.push_back(message);
  }
  wake_progress_thread();
}

// A message that this rank has begun must arrive even while this rank waits for
// another operation: its peer may be unable to continue before.
void WireMessageMatcher::wake_progress_thread() {
  if (is_idle() || stopping_) return;
  if (!progress_thread_.joinable())
    progress_thread_ = try_start_thread(core_.identity().name,
                                        [this] { run_progress_thread(); });
  else if (parked_)
    progress_wakes_.notify_one();
}

// Only polls, so that a thread that begins to wait is not delayed by it.
void WireMessageMatcher::run_progress_thread() {
  MutexLock lock(mutex_);
  microseconds pause_time = kUnwatched;
  while (!stopping_) {
    parked_ = is_idle();
    if (parked_) {
      progress_wakes_.wait(lock);
      pause_time = kUnwatched;
      parked_ = false;
    }
    progress_wakes_.wait_for(lock, pause_time);
    pause_time = std::min(2 * pause_time, kLongestPause);
    if (!stopping_ && waiters_ == 0 && !pumped_) advance();
    report_misfit();
    report_overdue();
  }
}

void WireMessageMatcher::report(const Pointer& message,
                                const std::exception_ptr& error) {
  mutex_.unlock();
  fail_(message, error);
  mutex_.lock();
}

// The sender and the receiver may both wait for something else meanwhile.
void WireMessageMatcher::report_misfit() {
  const Pointer message = std::exchange(misfit_, nullptr);
  if (message) report(message, std::exception_ptr(message->error));
}

// A caller may only poll. A waiting thread ends its wait by itself.
void WireMessageMatcher::report_overdue() {
  const auto now = Deadline::Clock::now();
  if (now < next_check_) return;
  next_check_ = now + kPeerCheckInterval;
  for (const auto* pending : {&wanted_, &moving_})
    for (const Pointer& message : *pending)
      if (message->deadline.expired() && !settled(*message))
        return report(Pointer(message), std::make_exception_ptr(WaitExpired()));
}

void WireMessageMatcher::send(WireMessage& message) {
  const Envelope envelope{signature_of(message.operation),
                          message.operation.tag};
  const std::size_t bytes = message.buffer.bytes();
  const bool is_short = bytes <= kShortBytes;
  message.envelope.resize(sizeof envelope + (is_short ? bytes : 0));
  std::memcpy(message.envelope.data(), &envelope, sizeof envelope);
  if (is_short && bytes > 0)
    std::memcpy(message.envelope.data() + sizeof envelope, message.buffer.data,
                bytes);
  const int to = message.operation.peer;
  message.envelope_request =
      core_.send({to, kChannelEnvelope, 0, message.envelope.data(),
                  message.envelope.size()});
  if (!is_short)
    message.payload_request =
        core_.send({to, kChannelPayload, payload_tag(envelope.signature),
                    message.buffer.data, bytes});
}

// A rank learns from its connection to a sender that the sender has died.
void WireMessageMatcher::connect_senders(int peer) {
  if (peer != kAnySource) return core_.transport().connect(peer);
  for (int from = 0; from < core_.size(); ++from)
    if (from != core_.rank()) core_.transport().connect(from);
}

void WireMessageMatcher::receive(const Pointer& message) {
  const auto fits = [&](const Kept& kept) {
    return message->matches(kept.from, kept.envelope.tag);
  };
  const auto found = std::ranges::find_if(kept_, fits);
  if (found == kept_.end()) {
    wanted_.push_back(message);
    connect_senders(message->operation.peer);
    return;
  }
  deliver(message, found->from, found->envelope, found->elements.data());
  kept_.erase(found);
  if (!settled(*message)) moving_.push_back(message);
}

// Gives an envelope to its receive: completes a short message, and posts the
// receive of a long one's elements.
void WireMessageMatcher::deliver(const Pointer& receive, int from,
                                 const Envelope& envelope,
                                 const std::byte* elements) {
  WireMessage& message = *receive;
  try {
    check_message(message.operation, from, envelope.signature,
                  core_.identity().name);
    message.source = from;
    const std::size_t bytes = bytes_of(envelope.signature);
    if (bytes > kShortBytes) {
      message.payload_request =
          core_.receive({from, kChannelPayload, payload_tag(envelope.signature),
                         message.buffer.data, bytes});
      return;
    }
    if (bytes > 0) std::memcpy(message.buffer.data, elements, bytes);
    message.done = true;
  } catch (const TransportError&) {
    message.error = std::current_exception();
  } catch (const Error&) {
    message.error = std::current_exception();
    misfit_ = receive;
  }
}

// Finds the receive of an envelope, or keeps the envelope.
void WireMessageMatcher::sort(int from, const Envelope& envelope,
                              const std::byte* elements) {
  const auto found = std::ranges::find_if(wanted_, [&](const Pointer& message) {
    return message->matches(from, envelope.tag);
  });
  if (found == wanted_.end()) {
    const std::size_t bytes = bytes_of(envelope.signature);
    Kept kept{from, envelope, {}};
    if (bytes <= kShortBytes) kept.elements.assign(elements, elements + bytes);
    kept_.push_back(std::move(kept));
    return;
  }
  const Pointer message = *found;
  wanted_.erase(found);
  deliver(message, from, envelope, elements);
  if (!settled(*message)) moving_.push_back(message);
}

// A rank that has left may have sent envelopes into the other slots before.
void WireMessageMatcher::take_envelopes(int from) {
  Inbox& inbox = this->inbox(from);
  if (!inbox.slots || inbox.lost) return;
  try {
    while (inbox.front().done()) {
      if (!inbox.front()) std::rethrow_exception(inbox.ending);
      const std::size_t slot = inbox.oldest;
      const std::byte* const arrived = inbox.place(slot);
      Envelope envelope;
      std::memcpy(&envelope, arrived, sizeof envelope);
      sort(from, envelope, arrived + sizeof envelope);
      inbox.front().reset();
      inbox.oldest = (slot + 1) % kEnvelopeSlots;
      if (!inbox.ending) post_slot(from, slot);
    }
  } catch (const TransportError& error) {
    inbox.lost = std::current_exception();
    inbox.own_trouble = error.status() == kTransportFailed;
    if (error.peer() >= 0) core_.lost(from);
  }
}

void WireMessageMatcher::advance(WireMessage& message) {
  try {
    if (message.envelope_request.done() && message.payload_request.done())
      message.done = true;
  } catch (const TransportError&) {
    message.error = std::current_exception();
  }
  if (!settled(message)) return;
  message.envelope_request.reset();
  message.payload_request.reset();
}

void WireMessageMatcher::advance() {
  std::exception_ptr lost, ends_all;
  int connected = 0;
  for (int from = 0; from < core_.size(); ++from) {
    if (from == core_.rank()) continue;
    take_envelopes(from);
    Inbox& inbox = this->inbox(from);
    // Its envelopes and its notices may end one after the other.
    if (inbox.lost && !inbox.has_died) inbox.has_died = core_.has_died(from);
    if (inbox.lost)
      lost = inbox.lost;
    else
      ++connected;
    if (inbox.own_trouble || inbox.has_died) ends_all = inbox.lost;
  }
  // Fails receives that can get no message. A receive from any source can,
  // while one rank is left; but if a rank has died, or this rank cannot hear
  // one that may be alive, the receive fails too, since it might wait for that
  // one.
  for (const Pointer& message : wanted_) {
    const int peer = message->operation.peer;
    if (peer == kAnySource && connected == 0) message->error = lost;
    if (peer == kAnySource && ends_all) message->error = ends_all;
    if (peer != kAnySource) message->error = inbox(peer).lost;
  }
  for (const Pointer& message : moving_) advance(*message);
  const auto is_settled = [](const Pointer& m) { return settled(*m); };
  std::erase_if(wanted_, is_settled);
  std::erase_if(moving_, is_settled);
}

// The request that `message` needs next; for a receive from any source, one
// rank after the other.
WireCore::Request* WireMessageMatcher::request_to_wait_for(
    WireMessage& message) {
  if (message.payload_request) return &message.payload_request;
  if (message.envelope_request) return &message.envelope_request;
  int from = message.operation.peer;
  for (int tries = 0; from == kAnySource && tries < core_.size(); ++tries) {
    next_inbox_ = (next_inbox_ + 1) % core_.size();
    const Inbox& inbox = this->inbox(next_inbox_);
    if (inbox.slots && !inbox.lost) from = next_inbox_;
  }
  if (from < 0 || !inbox(from).slots) return nullptr;
  return &inbox(from).front();
}

bool WireMessageMatcher::done(const Pointer& message) {
  const MutexLock lock(mutex_);
  if (!pumped_ && !settled(*message)) advance();
  if (misfit_) wake_progress_thread();
  return settled(*message);
}

void WireMessageMatcher::wait(const Pointer& message, Deadline deadline) {
  WireCore::PeerWatch watch(core_, deadline, message->operation.peer);
  microseconds pause_time = kShortestPause;
  ++waiters_;
  const std::shared_ptr<void> leaving(nullptr, [&](void*) { --waiters_; });
  MutexLock lock(mutex_);
  while (true) {
    if (!pumped_ && !settled(*message)) advance();
    report_misfit();
    if (settled(*message)) break;
    const bool alone = waiters_ == 1 && message->operation.peer != kAnySource;
    pause(lock, *message, alone ? kLonePause : pause_time);
    pause_time = std::min(2 * pause_time, kLongestPause);
    lock.unlock();
    watch.check();
    lock.lock();
  }
  changed_.notify_all();
  if (message->error) std::rethrow_exception(message->error);
}

void WireMessageMatcher::stop(const std::exception_ptr& error) {
  MutexLock lock(mutex_);
  for (Inbox& inbox : inboxes_) inbox.lost = error;
  std::list<Pointer> ended = std::move(wanted_);
  ended.splice(ended.end(), moving_);
  wanted_.clear();
  for (const Pointer& message : ended) message->error = error;
  changed_.notify_all();
  // A closed transport may still copy the data of a request. A thread that
  // waits for a request returns within a pause.
  while (pumped_) changed_.wait(lock);
  for (const Pointer& message : ended) {
    message->envelope_request.reset();
    message->payload_request.reset();
  }
}

// Waits a while for the next request of `message`, or for the thread that
// advances all messages.
void WireMessageMatcher::pause(MutexLock& lock, WireMessage& message,
                               microseconds timeout) {
  if (pumped_) {
    changed_.wait_for(lock, kLonePause);
    return;
  }
  WireCore::Request* const request = request_to_wait_for(message);
  if (request == nullptr) {
    changed_.wait_for(lock, timeout);
    return;
  }
  pumped_ = true;
  lock.unlock();
  try {
    request->wait(timeout);
  } catch (const TransportError&) {
    // advance() gets the error again, and knows the message concerned.
  }
  lock.lock();
  pumped_ = false;
  changed_.notify_all();
}

}  // namespace lockstep
