// A store that notifies a test of each call, then forwards it to another store.
//
// Threads: like the other store, if `watch` allows that.
// Errors:  those of the other store and of `watch`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/store/store.h"

namespace lockstep {

class WatchedStore : public Store {
 public:
  // Receives the method's name.
  using Watch = std::function<void(std::string_view method)>;

  WatchedStore(std::shared_ptr<Store> store, Watch watch)
      : store_(std::move(store)), watch_(std::move(watch)) {}

  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override {
    after("set").set(key, value, deadline);
  }
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override {
    return after("get").get(key, deadline, cancellation);
  }
  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) override {
    return after("multi_get").multi_get(keys, deadline, cancellation);
  }
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override {
    return after("wait_any").wait_any(keys, deadline, cancellation);
  }
  std::int64_t add(std::string_view key, std::int64_t amount,
                   Deadline deadline) override {
    return after("add").add(key, amount, deadline);
  }
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) override {
    return after("compare_and_set")
        .compare_and_set(key, expected, desired, deadline);
  }
  bool erase(std::string_view key, Deadline deadline) override {
    return after("erase").erase(key, deadline);
  }
  void set_last_will(const std::vector<std::string>& keys,
                     std::span<const std::byte> value,
                     Deadline deadline) override {
    after("set_last_will").set_last_will(keys, value, deadline);
  }
  void withdraw_last_will(Deadline deadline) override {
    after("withdraw_last_will").withdraw_last_will(deadline);
  }

 private:
  Store& after(std::string_view method) {
    watch_(method);
    return *store_;
  }

  const std::shared_ptr<Store> store_;
  const Watch watch_;
};

}  // namespace lockstep
