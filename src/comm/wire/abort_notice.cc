#include "src/comm/wire/abort_notice.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::duration_cast;
using std::chrono::microseconds;

constexpr auto kTimeout = 100ms;
// The control messages of collectives have tag 0.
constexpr std::int32_t kTag = 1;

}  // namespace

AbortNotice::AbortNotice(MessageTransport& transport, int rank, int size)
    : transport_(transport),
      rank_(rank),
      peers_(static_cast<std::size_t>(size)) {
  const MutexLock lock(mutex_);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    Peer& from = peers_[static_cast<std::size_t>(peer)];
    try {
      from.request = transport_.receive(
          {peer, kChannelControl, kTag, from.memory.data(), kBytes});
    } catch (const TransportError&) {
      continue;  // it has left already, which alone is not an error
    }
  }
}

void AbortNotice::say(const Fault& fault) noexcept {
  const MutexLock lock(mutex_);
  if (!unsaid_.empty()) return;
  const Bytes text = encode(fault);
  std::memcpy(own_.data(), text.data(), std::min(text.size(), kBytes));
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank_ || peer == fault.culprit) continue;
    try {
      unsaid_.push_back(
          transport_.send({peer, kChannelControl, kTag, own_.data(), kBytes}));
    } catch (const TransportError&) {
      continue;
    }
  }
  const Deadline deadline(kTimeout);
  for (MessageTransport::Request& request : unsaid_) wait(request, deadline);
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
    if (peer != fault.culprit)
      wait(peers_[static_cast<std::size_t>(peer)].request, deadline);
}

void AbortNotice::wait(MessageTransport::Request& request,
                       Deadline deadline) noexcept try {
  const auto timeout = duration_cast<microseconds>(deadline.remaining());
  request.wait(std::max(0us, timeout));
} catch (const std::exception&) {
  return;  // that connection has ended
}

std::optional<Fault> AbortNotice::words_of(Peer& peer) noexcept try {
  if (!peer.request || !peer.request.done()) return std::nullopt;
  auto fault = decode({peer.memory.begin(), peer.memory.end()});
  // The bytes after the text are zero.
  if (fault) fault->reason.resize(std::strlen(fault->reason.c_str()));
  return fault;
} catch (const std::exception&) {
  return std::nullopt;
}

std::optional<Fault> AbortNotice::heard_from(int peer) noexcept {
  const MutexLock lock(mutex_);
  return words_of(peers_[static_cast<std::size_t>(peer)]);
}

std::optional<Fault> AbortNotice::heard() noexcept {
  const MutexLock lock(mutex_);
  for (Peer& peer : peers_)
    if (auto fault = words_of(peer)) return fault;
  return std::nullopt;
}

}  // namespace lockstep
