#include "src/store/prefix_store.h"

#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

PrefixStore::PrefixStore(std::shared_ptr<Store> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {
  if (!store_) throw InvalidArgument("with_prefix: the store is null");
}

std::string PrefixStore::whole(std::string_view key) const {
  return prefix_ + std::string(key);
}

void PrefixStore::set(std::string_view key, std::span<const std::byte> value,
                      Deadline deadline) {
  store_->set(whole(key), value, deadline);
}

Bytes PrefixStore::get(std::string_view key, Deadline deadline,
                       const Cancellation* cancellation) {
  return store_->get(whole(key), deadline, cancellation);
}

std::vector<std::string> PrefixStore::whole(
    std::span<const std::string> keys) const {
  std::vector<std::string> whole_keys;
  whole_keys.reserve(keys.size());
  for (const std::string& key : keys) whole_keys.push_back(whole(key));
  return whole_keys;
}

std::vector<Bytes> PrefixStore::multi_get(std::span<const std::string> keys,
                                          Deadline deadline,
                                          const Cancellation* cancellation) {
  return store_->multi_get(whole(keys), deadline, cancellation);
}

std::size_t PrefixStore::wait_any(std::span<const std::string> keys,
                                  Deadline deadline,
                                  const Cancellation* cancellation) {
  return store_->wait_any(whole(keys), deadline, cancellation);
}

std::int64_t PrefixStore::add(std::string_view key, std::int64_t amount,
                              Deadline deadline) {
  return store_->add(whole(key), amount, deadline);
}

Bytes PrefixStore::compare_and_set(
    std::string_view key, std::optional<std::span<const std::byte>> expected,
    std::span<const std::byte> desired, Deadline deadline) {
  return store_->compare_and_set(whole(key), expected, desired, deadline);
}

bool PrefixStore::erase(std::string_view key, Deadline deadline) {
  return store_->erase(whole(key), deadline);
}

void PrefixStore::set_last_will(const std::vector<std::string>& keys,
                                std::span<const std::byte> value,
                                Deadline deadline) {
  std::vector<std::string> all;
  for (const std::string& key : keys) all.push_back(whole(key));
  store_->set_last_will(all, value, deadline);
}

void PrefixStore::withdraw_last_will(Deadline deadline) {
  store_->withdraw_last_will(deadline);
}

}  // namespace lockstep
