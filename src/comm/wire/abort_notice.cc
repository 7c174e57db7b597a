#include "src/comm/wire/abort_notice.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "src/comm/operation/peer_checks.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// The control messages of collectives have tag 0.
constexpr std::int32_t kTag = 1;

Fault goodbye_of(int rank) {
  return {FaultKind::kPeerGone, rank, 0, kLeftGroup};
}

// A rank that others hold for dead passes on their fault, of which it is the
// culprit; the reason of that one also says which rank noticed.
bool is_goodbye(const Fault& words, int from) {
  return words.kind == FaultKind::kPeerGone && words.culprit == from &&
         words.reason == kLeftGroup;
}

}  // namespace

AbortNotice::AbortNotice(MessageTransport& transport)
    : transport_(transport),
      watch_(transport, [this](int peer) { listen_to(peer); }) {
  const MutexLock lock(mutex_);
  has_formed_ = true;
}

void AbortNotice::listen_to(int number) {
  const MutexLock lock(mutex_);
  const auto [found, is_new] = peers_.try_emplace(number);
  if (!is_new) return;
  Peer& peer = found->second;
  peer.number = peers_.size();
  peer.is_early = !has_formed_;
  try {
    peer.receives = transport_.receive(
        {number, kChannelControl, kTag, peer.memory.data(), kBytes});
  } catch (const TransportError&) {
    return;  // it has left already, which alone is not an error
  }
  if (said_) send_to(number, peer);
}

void AbortNotice::send_to(int number, Peer& peer) noexcept try {
  if (number == said_->culprit) return;
  peer.sends =
      transport_.send({number, kChannelControl, kTag, own_.data(), kBytes});
} catch (const TransportError&) {
  return;  // it has left
}

Fault AbortNotice::say(const Fault& fault,
                       std::chrono::milliseconds patience) noexcept {
  Fault said = fault;
  {
    const MutexLock lock(mutex_);
    if (has_left_) return fault;
    if (said_)
      said = *said_;
    else
      say_to_all(fault);
  }
  const Deadline deadline(patience);
  Backoff backoff(1ms, 5ms);
  try {
    while (!all_have_spoken())
      if (backoff.wait(deadline) == WaitResult::kTimedOut) break;
  } catch (const std::exception&) {  // such as a lack of memory in poll()
  }
  return said;
}

void AbortNotice::say_to_all(const Fault& fault) {
  said_ = fault;
  const Bytes text = encode(fault);
  std::memcpy(own_.data(), text.data(), std::min(text.size(), kBytes));
  for (auto& [rank, peer] : peers_) send_to(rank, peer);
}

void AbortNotice::say_goodbye(int own,
                              std::chrono::milliseconds patience) noexcept try {
  {
    const MutexLock lock(mutex_);
    if (said_) return;
    has_left_ = true;
    say_to_all(goodbye_of(own));
  }
  const Deadline deadline(patience);
  Backoff backoff(1ms, 5ms);
  while (!all_have_heard())
    if (backoff.wait(deadline) == WaitResult::kTimedOut) return;
} catch (const std::exception&) {  // a lack of memory
  return;
}

bool AbortNotice::all_have_heard() noexcept {
  const MutexLock lock(mutex_);
  return std::ranges::all_of(
      peers_, [](auto& each) { return is_over(each.second.sends); });
}

bool AbortNotice::all_have_spoken() noexcept {
  const MutexLock lock(mutex_);
  const int culprit = said_ ? said_->culprit : -1;
  return std::ranges::all_of(peers_, [culprit](auto& each) {
    auto& [number, peer] = each;
    return number == culprit || (is_over(peer.sends) && is_over(peer.receives));
  });
}

bool AbortNotice::met_early(int peer) noexcept {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.is_early;
}

std::optional<int> AbortNotice::first_lost() noexcept {
  const MutexLock lock(mutex_);
  std::optional<int> first;
  for (auto& [rank, peer] : peers_)
    if (is_lost(peer.receives) &&
        (!first || peer.number < peers_.at(*first).number))
      first = rank;
  return first;
}

// Not where this rank has closed the transport itself.
bool AbortNotice::is_lost(MessageTransport::Request& request) noexcept try {
  request.done();
  return false;
} catch (const TransportError& error) {
  return error.peer() >= 0;
} catch (const std::exception&) {
  return false;
}

bool AbortNotice::is_over(MessageTransport::Request& request) noexcept try {
  return request.done();
} catch (const std::exception&) {
  return true;  // that connection has ended
}

std::optional<Fault> AbortNotice::words_of(Peer& peer) noexcept try {
  if (!peer.receives || !peer.receives.done()) return std::nullopt;
  auto fault = decode({peer.memory.begin(), peer.memory.end()});
  // The bytes after the text are zero.
  if (fault) fault->reason.resize(std::strlen(fault->reason.c_str()));
  return fault;
} catch (const std::exception&) {
  return std::nullopt;
}

std::optional<Fault> AbortNotice::heard_from(int peer) noexcept {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  auto words = words_of(found->second);
  return words && is_goodbye(*words, peer) ? std::nullopt : words;
}

bool AbortNotice::has_said_goodbye(int peer) noexcept {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return false;
  const auto words = words_of(found->second);
  return words && is_goodbye(*words, peer);
}

bool AbortNotice::has_died(int peer) noexcept {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  return found != peers_.end() && is_lost(found->second.receives);
}

std::optional<Fault> AbortNotice::heard() noexcept {
  const MutexLock lock(mutex_);
  for (auto& [peer, from] : peers_)
    if (auto words = words_of(from); words && !is_goodbye(*words, peer))
      return words;
  return std::nullopt;
}

}  // namespace lockstep
