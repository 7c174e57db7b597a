#include "src/comm/rendezvous/group_fault.h"

#include <chrono>

#include "src/base/log.h"
#include "src/net/byte_stream.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// An error must not wait for a store that does not answer.
constexpr auto kStorePatience = 2s;

// A key that is always set: a wait for it and others returns at once, and tells
// which of the others is set.
constexpr std::string_view kPresent = "present";

}  // namespace

Bytes encode(const Fault& fault) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.number(static_cast<std::uint8_t>(fault.kind));
  writer.number(static_cast<std::uint32_t>(fault.culprit));
  writer.number(fault.sequence);
  writer.text(fault.reason);
  return bytes;
}

std::optional<Fault> decode(const Bytes& bytes) {
  ByteReader reader(bytes);
  Fault fault;
  fault.kind = static_cast<FaultKind>(reader.number<std::uint8_t>());
  fault.culprit = static_cast<int>(reader.number<std::uint32_t>());
  fault.sequence = reader.number<std::uint64_t>();
  if (reader.overrun()) return std::nullopt;
  fault.reason = to_text(reader.rest());
  return fault;
}

std::shared_ptr<Store> GroupFault::store() const {
  const MutexLock lock(mutex_);
  if (!store_) throw NetworkError("this rank has left the group");
  return store_;
}

void GroupFault::let_go_of_store() noexcept {
  std::shared_ptr<Store> last;  // destroyed after the lock is released
  const MutexLock lock(mutex_);
  last.swap(store_);
}

Fault GroupFault::settle(const Fault& mine) noexcept try {
  const Bytes held = store()->compare_and_set(key_, std::nullopt, encode(mine),
                                              kStorePatience);
  return decode(held).value_or(mine);
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return mine;
}

// Only a compare_and_set that cannot apply reads the store without waiting.
Bytes GroupFault::peek(const std::string& key) {
  const Bytes never = to_bytes("nothing reads like this");
  return store()->compare_and_set(key, never, never, kStorePatience);
}

std::optional<Fault> GroupFault::look() noexcept try {
  return decode(peek(key_));
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return std::nullopt;
}

std::string GroupFault::awaited_key(int rank) const {
  return key_ + "/awaited/" + std::to_string(rank);
}

void GroupFault::say_awaited(int rank, const std::vector<int>& awaited) noexcept
    try {
  Bytes bytes;
  ByteWriter writer(bytes);
  for (const int each : awaited)
    writer.number(static_cast<std::uint32_t>(each));
  store()->set(awaited_key(rank), bytes, kStorePatience);
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
}

std::vector<int> GroupFault::awaited_by(int rank, Deadline deadline) noexcept
    try {
  const Bytes bytes = store()->get(awaited_key(rank), deadline);
  ByteReader reader(bytes);
  std::vector<int> awaited;
  for (std::size_t i = 0; i < bytes.size() / sizeof(std::uint32_t); ++i)
    awaited.push_back(static_cast<int>(reader.number<std::uint32_t>()));
  return awaited;
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return {};
}

std::optional<int> GroupFault::first_to_say(const std::vector<int>& ranks,
                                            Deadline deadline) noexcept try {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(awaited_key(rank));
  return ranks[store()->wait_any(keys, deadline)];
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return std::nullopt;
}

std::optional<std::size_t> GroupFault::first_set(
    std::vector<std::string> keys) noexcept try {
  const auto reached = store();
  const std::string present(kPresent);
  if (!marked_.load()) {
    reached->set(present, {}, kStorePatience);
    marked_ = true;
  }
  keys.push_back(present);
  const std::size_t found = reached->wait_any(keys, kStorePatience);
  if (found + 1 == keys.size()) return std::nullopt;
  return found;
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return std::nullopt;
}

}  // namespace lockstep
