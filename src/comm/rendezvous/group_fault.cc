#include "src/comm/rendezvous/group_fault.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <system_error>

#include "src/base/log.h"
#include "src/base/printable.h"
#include "src/comm/rendezvous/formation.h"
#include "src/net/byte_stream.h"
#include "src/store/peek.h"
#include "src/store/store_call.h"

namespace lockstep {
namespace {

// A key that is always set: a wait for it and others returns at once, and tells
// which of the others is set.
constexpr std::string_view kPresent = "present";

// Around a fault in a text: no message has these characters.
constexpr char kFaultBegins = '\x02';
constexpr char kFaultEnds = '\x03';

// Bytes of a reason in a text. The ranks of a host have 2,032 bytes for a text,
// with what stands around the fault; one that is cut holds no fault.
constexpr std::size_t kMostReason = 1500;

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

std::string as_reason(const Fault& fault) {
  std::array<char, kMostReason> kept;
  const std::size_t length = copy_shortened(fault.reason, kept);
  return fmt::format("{}{} {} {} {}{}", kFaultBegins,
                     static_cast<int>(fault.kind), fault.culprit,
                     fault.sequence, std::string_view(kept.data(), length),
                     kFaultEnds);
}

std::optional<Fault> fault_in(std::string_view text) {
  const std::size_t begin = text.find(kFaultBegins);
  const std::size_t end = text.rfind(kFaultEnds);
  if (begin == text.npos || end == text.npos || end < begin)
    return std::nullopt;
  const char* at = text.data() + begin + 1;
  const char* const last = text.data() + end;
  const auto take = [&](auto& number) {
    const auto [rest, error] = std::from_chars(at, last, number);
    const bool taken = error == std::errc{} && rest != last && *rest == ' ';
    at = taken ? rest + 1 : last;
    return taken;
  };
  Fault fault;
  int kind = 0;
  if (!take(kind) || !take(fault.culprit) || !take(fault.sequence) ||
      kind < 0 || kind > static_cast<int>(FaultKind::kAborted))
    return std::nullopt;
  fault.kind = static_cast<FaultKind>(kind);
  fault.reason.assign(at, last);
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

std::optional<Deadline::Clock::time_point> GroupFault::silent_since() const {
  const MutexLock lock(mutex_);
  return silent_since_;
}

void GroupFault::note_answer() noexcept {
  const MutexLock lock(mutex_);
  silent_since_.reset();
}

void GroupFault::note_error(const std::exception& error,
                            Deadline::Clock::time_point begun) noexcept {
  log(LogLevel::kDebug, error.what());
  const MutexLock lock(mutex_);
  if (dynamic_cast<const StoreEnded*>(&error) != nullptr)
    silent_since_.reset();
  else if (!silent_since_)
    silent_since_ = begun;
}

std::optional<Fault> GroupFault::settle(const Fault& mine,
                                        Deadline deadline) noexcept try {
  const Bytes held =
      store()->compare_and_set(key_, std::nullopt, encode(mine), deadline);
  return decode(held).value_or(mine);
} catch (const std::exception& error) {
  log(LogLevel::kDebug, error.what());
  return std::nullopt;
}

std::optional<Fault> GroupFault::look(Deadline deadline) noexcept {
  const auto begun = Deadline::Clock::now();
  try {
    auto fault = decode(peek(*store(), key_, deadline));
    note_answer();
    return fault;
  } catch (const std::exception& error) {
    note_error(error, begun);
    return std::nullopt;
  }
}

std::optional<std::size_t> GroupFault::first_set(std::vector<std::string> keys,
                                                 Deadline deadline) noexcept {
  const auto begun = Deadline::Clock::now();
  try {
    const auto reached = store();
    const std::string present(kPresent);
    if (!marked_.load()) {
      reached->set(present, {}, deadline);
      marked_ = true;
    }
    keys.push_back(present);
    const std::size_t found = reached->wait_any(keys, deadline);
    note_answer();
    if (found + 1 == keys.size()) return std::nullopt;
    return found;
  } catch (const std::exception& error) {
    note_error(error, begun);
    return std::nullopt;
  }
}

}  // namespace lockstep
