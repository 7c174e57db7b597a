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

#include "src/store/forwarding_store.h"
#include "src/store/prefix_store.h"

namespace lockstep {

class RoundStore : public ForwardingStore {
 public:
  RoundStore(const std::shared_ptr<Store>& job_store, int round);

  // From now on waits are those of the store itself.
  void be_formed() { formed_ = true; }

  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override;
  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) override;
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override;

 private:
  RoundStore(std::shared_ptr<Store> job_store, int round,
             std::shared_ptr<PrefixStore> part);

  const std::shared_ptr<Store> job_store_;
  const int round_;
  const std::shared_ptr<PrefixStore> part_;  // this round's part
  std::atomic<bool> formed_{false};
};

}  // namespace lockstep
