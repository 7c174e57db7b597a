// A view of another store: with_prefix() in store.h.
//
// Threads: every method may be called from any thread.
// Errors:  those of the underlying store; their messages name the whole key.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix);

  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override;
  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) override;
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override;
  std::int64_t add(std::string_view key, std::int64_t amount,
                   Deadline deadline) override;
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) override;
  bool erase(std::string_view key, Deadline deadline) override;
  void set_last_will(const std::vector<std::string>& keys,
                     std::span<const std::byte> value,
                     Deadline deadline) override;
  void withdraw_last_will(Deadline deadline) override;

  // The key in the underlying store.
  std::string whole(std::string_view key) const;

 private:
  std::vector<std::string> whole(std::span<const std::string> keys) const;

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

}  // namespace lockstep
