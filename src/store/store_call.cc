#include "src/store/store_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void check_key(const char* method, std::string_view key) {
  if (key.size() > Store::kMaxKeyBytes)
    throw InvalidArgument(fmt::format(
        "{}: a key of {} bytes is too long (\"{}…\"); a store's keys have at "
        "most {}",
        method, key.size(), key.substr(0, 40), Store::kMaxKeyBytes));
}

}  // namespace

StoreCall::StoreCall(const char* method, const StorePlace& place)
    : method_(method), url_(place.url) {
  if (!place.process.is_child()) return;
  throw InvalidArgument(fmt::format(
      "{} at {}: this process was forked from the one that opened the store, "
      "and cannot use its connection\n  next:    open the store here, too",
      method, url_));
}

StoreCall::StoreCall(const char* method, std::string_view key,
                     const StorePlace& place)
    : StoreCall(method, place) {
  key_ = key;
  check_key(method, key);
}

StoreCall::StoreCall(const char* method, std::span<const std::string> keys,
                     const StorePlace& place)
    : StoreCall(method, place) {
  keys_ = keys;
  if (keys.empty())
    throw InvalidArgument(fmt::format(
        "{}: the list of keys is empty; there is nothing to wait for", method));
  std::size_t bytes = 0;
  for (const std::string& key : keys) {
    check_key(method, key);
    bytes += key.size() + sizeof(std::uint16_t);
  }
  if (bytes > Store::kMaxValueBytes)
    throw InvalidArgument(fmt::format(
        "{}: {} keys are too many for one call ({} bytes, at most {})", method,
        keys.size(), bytes, Store::kMaxValueBytes));
}

void StoreCall::check(std::span<const std::byte> value) const {
  if (value.size() > Store::kMaxValueBytes)
    throw InvalidArgument(fmt::format(
        "{}({}): a value of {} bytes is too large; a store's values have at "
        "most {} (bulk data belongs in a collective)",
        method_, keys_text(), value.size(), Store::kMaxValueBytes));
}

std::string StoreCall::keys_text() const {
  constexpr std::size_t kShown = 8;
  if (key_) return fmt::format("\"{}\"", *key_);
  std::string text;
  for (const std::string& key : keys_.first(std::min(keys_.size(), kShown)))
    text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", key);
  if (keys_.size() > kShown)
    text += fmt::format(" and {} more", keys_.size() - kShown);
  return text;
}

std::string StoreCall::text() const {
  if (!key_ && keys_.empty()) return fmt::format("{} at {}", method_, url_);
  return fmt::format("{}({}) at {}", method_, keys_text(), url_);
}

void StoreCall::check(WaitResult result) const {
  switch (result) {
    case WaitResult::kReady:
      return;
    case WaitResult::kCancelled:
      throw Cancelled(fmt::format("{} was cancelled", text()));
    case WaitResult::kTimedOut:
      break;
  }
  const std::chrono::duration<double> waited = Deadline::Clock::now() - start_;
  throw Timeout(fmt::format(
      "{} timed out after {:.1f} s\n"
      "  likely:  the rank that sets an awaited key, or the one that serves "
      "the store, is slow, stopped or dead\n"
      "  next:    read the logs of these ranks",
      text(), waited.count()));
}

std::string StoreCall::failure_text(std::string_view reason) const {
  return fmt::format(
      "{} failed: {}\n"
      "  likely:  the process that serves the store has ended\n"
      "  next:    read the log of the rank, or the launcher, that serves it",
      text(), reason);
}

void StoreCall::fail_connection(std::string_view reason) const {
  throw NetworkError(failure_text(reason));
}

void StoreCall::fail_as_ended(std::string_view reason) const {
  throw StoreEnded(failure_text(reason));
}

}  // namespace lockstep
