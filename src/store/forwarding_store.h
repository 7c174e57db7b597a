// A store that passes every call on to another one; a subclass changes some.
//
// Threads: every method may be called from any thread.
// Errors:  those of the other store.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/store/store.h"

namespace lockstep {

class ForwardingStore : public Store {
 public:
  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override {
    target_of("set").set(key, value, deadline);
  }
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    return target_of("get").get(key, deadline, cancellation);
  }
  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) override {
    return target_of("multi_get").multi_get(keys, deadline, cancellation);
  }
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override {
    return target_of("wait_any").wait_any(keys, deadline, cancellation);
  }
  std::int64_t add(std::string_view key, std::int64_t amount,
                   Deadline deadline) override {
    return target_of("add").add(key, amount, deadline);
  }
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) override {
    return target_of("compare_and_set")
        .compare_and_set(key, expected, desired, deadline);
  }
  bool erase(std::string_view key, Deadline deadline) override {
    return target_of("erase").erase(key, deadline);
  }
  void set_last_will(const std::vector<std::string>& keys,
                     std::span<const std::byte> value,
                     Deadline deadline) override {
    target_of("set_last_will").set_last_will(keys, value, deadline);
  }
  void withdraw_last_will(Deadline deadline) override {
    target_of("withdraw_last_will").withdraw_last_will(deadline);
  }

 protected:
  explicit ForwardingStore(std::shared_ptr<Store> store)
      : store_(std::move(store)) {}

  Store& target() const { return *store_; }
  // The same, for a call of this method.
  virtual Store& target_of(std::string_view /*method*/) { return *store_; }

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace lockstep
