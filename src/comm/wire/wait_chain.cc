#include "src/comm/wire/wait_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/net/byte_stream.h"

namespace lockstep {
namespace {

bool has(const std::vector<int>& ranks, int wanted) {
  return std::ranges::find(ranks, wanted) != ranks.end();
}

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
  std::vector<int> found = follow(awaited.ranks, deadline, *stopped);
  const MutexLock lock(mutex_);
  following_.reset();
  return found.empty() ? awaited.ranks : found;
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

std::vector<int> WaitChain::follow(const std::vector<int>& ranks,
                                   Deadline deadline,
                                   const Cancellation& stopped) {
  std::vector<int> found;   // all ranks of the chains, in the order of `ranks`
  std::vector<int> silent;  // this rank waits for all of these at once
  std::vector<int> late;    // because of others
  const auto add = [&](const std::vector<int>& further) {
    for (const int next : further) {
      if (next < 0 || next >= parts_.size || next == parts_.rank ||
          has(found, next))
        continue;
      found.push_back(next);
      silent.push_back(next);
    }
  };
  add(ranks);
  while (!silent.empty()) {
    const auto spoke = first_to_publish(silent, deadline, stopped);
    if (!spoke) break;
    std::erase(silent, *spoke);
    // A rank whose words cannot be read waits too, for some rank.
    const auto theirs = published_by(*spoke, deadline, stopped);
    const bool is_end =
        theirs && (theirs->any_suffices || has(theirs->ranks, parts_.rank));
    if (!is_end) late.push_back(*spoke);
    if (theirs && !theirs->any_suffices) add(theirs->ranks);
  }
  std::erase_if(found, [&](int next) { return has(late, next); });
  return found;
}

}  // namespace lockstep
