// The store as the members of one round of an elastic job see it while they
// form the default group: its waits end once the launcher has begun the next
// round, because a member of this one may then be dead.
//
// Threads: any thread.
// Errors:  those of Store; from waits before be_formed() also NetworkError,
//          once the next round has begun.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep {

class RoundStore : public Store {
 public:
  RoundStore(std::shared_ptr<Store> job_store, int round);

  // From now on waits are those of the store itself.
  void be_formed() { formed_ = true; }

  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override {
    store_->set(key, value, deadline);
  }
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override;
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override;
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
  void set_last_will(std::string_view key, std::span<const std::byte> value,
                     Deadline deadline) override {
    store_->set_last_will(key, value, deadline);
  }
  void withdraw_last_will(Deadline deadline) override {
    store_->withdraw_last_will(deadline);
  }

 private:
  std::string in_job(std::string_view key) const {
    return prefix_ + std::string(key);
  }

  const std::shared_ptr<Store> job_store_;
  const int round_;
  const std::string prefix_;
  const std::shared_ptr<Store> store_;  // this round's part
  std::atomic<bool> formed_{false};
};

}  // namespace lockstep
