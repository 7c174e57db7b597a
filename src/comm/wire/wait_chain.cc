#include "src/comm/wire/wait_chain.h"

#include <fmt/format.h>

#include <cstdint>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/net/byte_stream.h"

namespace lockstep {
namespace {

Bytes encode(const AwaitedRanks& awaited) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.number(static_cast<std::uint8_t>(awaited.any_suffices));
  for (const int rank : awaited.ranks)
    writer.number(static_cast<std::uint32_t>(rank));
  return bytes;
}

AwaitedRanks decode_awaited(const Bytes& bytes) {
  ByteReader reader(bytes);
  AwaitedRanks awaited;
  awaited.any_suffices = reader.number<std::uint8_t>() != 0;
  for (std::size_t at = 1; at + sizeof(std::uint32_t) <= bytes.size();
       at += sizeof(std::uint32_t))
    awaited.ranks.push_back(static_cast<int>(reader.number<std::uint32_t>()));
  return awaited;
}

}  // namespace

std::string WaitChain::key(int rank) const {
  return fmt::format("{}/awaited/{}/{}", parts_.fault->key(), parts_.duplicate,
                     rank);
}

bool WaitChain::publish(const AwaitedRanks& awaited, Deadline deadline) noexcept
    try {
  if (is_useless()) return false;
  parts_.fault->store()->set(key(parts_.rank), encode(awaited), deadline);
  return true;
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return false;
}

void WaitChain::retract(Deadline deadline) noexcept try {
  if (!is_useless()) parts_.fault->store()->erase(key(parts_.rank), deadline);
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
}

void WaitChain::stop() noexcept {
  const MutexLock lock(mutex_);
  stopped_ = true;
  if (following_) following_->cancel();
}

// Null if it must not.
std::shared_ptr<Cancellation> WaitChain::begin_to_follow() {
  const MutexLock lock(mutex_);
  if (stopped_) return nullptr;
  following_ = std::make_shared<Cancellation>();
  return following_;
}

std::vector<int> WaitChain::ends(const AwaitedRanks& awaited,
                                 Deadline deadline) noexcept try {
  if (is_useless() || awaited.any_suffices) return awaited.ranks;
  const auto stopped = begin_to_follow();
  if (!stopped) return awaited.ranks;
  const auto find_waiting =
      [&](const std::vector<int>& ranks) -> std::optional<WaitingRank> {
    const auto spoke = first_to_publish(ranks, deadline, *stopped);
    if (!spoke) return std::nullopt;
    return WaitingRank{*spoke, published_by(*spoke, deadline, *stopped)};
  };
  std::vector<int> found =
      ends_of_waits(awaited, {parts_.rank, parts_.size, awaited}, find_waiting);
  const MutexLock lock(mutex_);
  following_.reset();
  return found;
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return awaited.ranks;
}

std::optional<int> WaitChain::first_to_publish(
    const std::vector<int>& ranks, Deadline deadline,
    const Cancellation& stopped) try {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key(rank));
  return ranks[parts_.fault->store()->wait_any(keys, deadline, &stopped)];
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return std::nullopt;
}

// Nothing if it cannot be read.
std::optional<AwaitedRanks> WaitChain::published_by(
    int rank, Deadline deadline, const Cancellation& stopped) try {
  return decode_awaited(
      parts_.fault->store()->get(key(rank), deadline, &stopped));
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return std::nullopt;
}

}  // namespace lockstep
