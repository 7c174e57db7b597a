// A store whose methods become requests; a subclass transports them.
//
// Threads: any thread, if call() allows that.
// Errors:  those of Store.
#pragma once

#include <string>

#include "lockstep/store/store.h"
#include "src/store/store_call.h"
#include "src/store/store_protocol.h"

namespace lockstep {

class RequestStore : public Store {
 public:
  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) final;
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) final;
  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) final;
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) final;
  std::int64_t add(std::string_view key, std::int64_t amount,
                   Deadline deadline) final;
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) final;
  bool erase(std::string_view key, Deadline deadline) final;
  void set_last_will(const std::vector<std::string>& keys,
                     std::span<const std::byte> value, Deadline deadline) final;
  void withdraw_last_will(Deadline deadline) final;

 protected:
  // `url` names the store in messages.
  explicit RequestStore(std::string url) : place_{std::move(url)} {}

  const StorePlace& place() const { return place_; }

  // The value of an answer; InvalidArgument for a refusal.
  static Bytes take_value(Answer answer);

 private:
  // Carries out the request and returns the answer's value. The callee chooses
  // the request's id.
  virtual Bytes carry_out(const StoreCall& call, Request& request,
                          Deadline deadline,
                          const Cancellation* cancellation) = 0;

  const StorePlace place_;
};

}  // namespace lockstep
