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
#include "src/base/own_process.h"
#include "src/net/wait.h"

namespace lockstep {

// The store's server has ended: it will not answer any more.
class StoreEnded : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// A store as its calls see it.
struct StorePlace {
  std::string url{};    // names the store in messages
  ForkCheck process{};  // that has opened it
};

// A view of the caller's arguments, which must outlive it. The constructor
// throws InvalidArgument for keys beyond the limits of Store, and in a forked
// child of the process that opened the store: the two share its connections,
// and its lock on a file.
class StoreCall {
 public:
  // `method` is the called method's name.
  StoreCall(const char* method, const StorePlace& place);
  StoreCall(const char* method, std::string_view key, const StorePlace& place);
  StoreCall(const char* method, std::span<const std::string> keys,
            const StorePlace& place);

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
