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

AbortNotice::AbortNotice(MessageTransport& transport)
    : transport_(transport),
      watch_(transport, [this](int peer) { listen_to(peer); }) {}

void AbortNotice::listen_to(int peer) {
  const MutexLock lock(mutex_);
  const auto [found, is_new] = peers_.try_emplace(peer);
  if (!is_new) return;
  try {
    found->second.request = transport_.receive(
        {peer, kChannelControl, kTag, found->second.memory.data(), kBytes});
  } catch (const TransportError&) {
    return;  // it has left already, which alone is not an error
  }
}

void AbortNotice::say(const Fault& fault) noexcept {
  const MutexLock lock(mutex_);
  if (!unsaid_.empty()) return;
  const Bytes text = encode(fault);
  std::memcpy(own_.data(), text.data(), std::min(text.size(), kBytes));
  for (const auto& [peer, unused] : peers_) {
    if (peer == fault.culprit) continue;
    try {
      unsaid_.push_back(
          transport_.send({peer, kChannelControl, kTag, own_.data(), kBytes}));
    } catch (const TransportError&) {
      continue;
    }
  }
  const Deadline deadline(kTimeout);
  for (MessageTransport::Request& request : unsaid_) wait(request, deadline);
  for (auto& [peer, from] : peers_)
    if (peer != fault.culprit) wait(from.request, deadline);
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
  const auto found = peers_.find(peer);
  return found == peers_.end() ? std::nullopt : words_of(found->second);
}

std::optional<Fault> AbortNotice::heard() noexcept {
  const MutexLock lock(mutex_);
  for (auto& [peer, from] : peers_)
    if (auto fault = words_of(from)) return fault;
  return std::nullopt;
}

}  // namespace lockstep
