// Describes a call of a store: checks its limits and words its errors.
//
// Threads: one thread at a time per object.
// Errors:  see each function.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/net/wait.h"

namespace lockstep {

// The store's server has ended: it will not answer any more.
class StoreEnded : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// A view of the caller's arguments, which must outlive it. The constructor
// checks the keys against the limits of Store: InvalidArgument.
class StoreCall {
 public:
  // `method` is the called method's name; `url` names the store in messages.
  StoreCall(const char* method, std::string_view url)
      : method_(method), url_(url) {}
  StoreCall(const char* method, std::string_view key, std::string_view url);
  StoreCall(const char* method, std::span<const std::string> keys,
            std::string_view url);

  // InvalidArgument when `value` exceeds the limit.
  void check(std::span<const std::byte> value) const;

  // `get("ranks/3") at tcp://node-a:29500`.
  std::string text() const;

  // Throws Timeout or Cancelled naming the call, unless `result` is kReady.
  void check(WaitResult result) const;

  // Throws NetworkError naming the call, `reason` and the next step.
  [[noreturn]] void fail_connection(std::string_view reason) const;
  // The same, as StoreEnded.
  [[noreturn]] void fail_as_ended(std::string_view reason) const;

 private:
  std::string keys_text() const;
  std::string failure_text(std::string_view reason) const;

  const char* method_;
  std::optional<std::string_view> key_;
  std::span<const std::string> keys_;
  std::string_view url_;
  Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

}  // namespace lockstep
