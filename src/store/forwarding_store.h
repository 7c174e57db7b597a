// A store that passes every call on to another one; a subclass changes some.
//
// Threads: every method may be called from any thread.
// Errors:  those of the other store.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/store/store.h"

namespace lockstep {

class ForwardingStore : public Store {
 public:
  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override {
    store_->set(key, value, deadline);
  }
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    return store_->get(key, deadline, cancellation);
  }
  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) override {
    return store_->multi_get(keys, deadline, cancellation);
  }
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override {
    return store_->wait_any(keys, deadline, cancellation);
  }
  std::int64_t add(std::string_view key, std::int64_t amount,
                   Deadline deadline) override {
    return store_->add(key, amount, deadline);
  }
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) override {
    return store_->compare_and_set(key, expected, desired, deadline);
  }
  bool erase(std::string_view key, Deadline deadline) override {
    return store_->erase(key, deadline);
  }
  void set_last_will(const std::vector<std::string>& keys,
                     std::span<const std::byte> value,
                     Deadline deadline) override {
    store_->set_last_will(keys, value, deadline);
  }
  void withdraw_last_will(Deadline deadline) override {
    store_->withdraw_last_will(deadline);
  }

 protected:
  explicit ForwardingStore(std::shared_ptr<Store> store)
      : store_(std::move(store)) {}

  Store& target() const { return *store_; }

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace lockstep
