#include "src/comm/rendezvous/store_all_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "lockstep/base/error.h"
#include "src/comm/operation/peer_checks.h"
#include "src/comm/rendezvous/formation.h"
#include "src/store/peek.h"

namespace lockstep {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);

// All values as one: the length of each, then its bytes.
Bytes join(const std::vector<Bytes>& values) {
  Bytes all;
  for (const Bytes& value : values) {
    std::array<std::byte, kLengthBytes> length{};
    const auto size = static_cast<std::uint32_t>(value.size());
    std::memcpy(length.data(), &size, kLengthBytes);
    all.insert(all.end(), length.begin(), length.end());
    all.insert(all.end(), value.begin(), value.end());
  }
  return all;
}

std::vector<std::string> split(const Bytes& all) {
  std::vector<std::string> values;
  for (std::size_t at = 0; at + kLengthBytes <= all.size();) {
    std::uint32_t size = 0;
    std::memcpy(&size, &all[at], kLengthBytes);
    at += kLengthBytes;
    if (size > all.size() - at) break;
    values.emplace_back(reinterpret_cast<const char*>(all.data()) + at, size);
    at += size;
  }
  return values;
}

// Waits for `key`; returns whether it came before the deadline.
bool await(Store& store, const std::string& key, const GatherWait& wait) {
  for (;;) {
    try {
      store.wait_any(std::span(&key, 1),
                     wait.check_peers
                         ? std::min(wait.deadline, Deadline(kPeerCheckInterval))
                         : wait.deadline);
      return true;
    } catch (const Timeout&) {
      if (wait.deadline.expired()) return false;
    }
    if (wait.check_peers) wait.check_peers();
  }
}

Timeout timeout_of(const GroupIdentity& identity, Store& store,
                   std::span<const std::string> keys) {
  std::vector<std::string> missing;
  for (int rank = 0; rank < identity.size; ++rank) {
    const std::string& key = keys[static_cast<std::size_t>(rank)];
    if (peek(store, key, kStoreAnswers).empty())
      missing.push_back(identity.describe(rank));
  }
  if (missing.empty()) missing.push_back("no rank; one stopped as it counted");
  return Timeout(fmt::format(
      "group \"{}\" of {} ranks could not form: timed out on {}\n"
      "  missing: {}\n  next:    read the logs of the missing ranks",
      identity.name, identity.size, identity.describe(identity.rank),
      fmt::join(missing, ", ")));
}

}  // namespace

std::vector<std::string> store_all_gather(const GroupIdentity& identity,
                                          const std::string& subject,
                                          const std::string& mine, Store& store,
                                          const GatherWait& wait) {
  const std::string root = fmt::format("group/{}/{}/", identity.name, subject);
  const std::string count = root + "count";
  const std::string all = root + "all";
  std::vector<std::string> keys;
  for (int rank = 0; rank < identity.size; ++rank)
    keys.push_back(root + std::to_string(rank));
  // The mark before it tells an empty value from an absent one.
  store.set(keys[static_cast<std::size_t>(identity.rank)], to_bytes('=' + mine),
            wait.deadline);
  if (store.add(count, 1, wait.deadline) == identity.size) {
    store.erase(count, wait.deadline);
    store.set(all, join(store.multi_get(keys, kStoreAnswers)), wait.deadline);
  }
  if (!await(store, all, wait)) throw timeout_of(identity, store, keys);
  std::vector<std::string> values = split(store.get(all, kStoreAnswers));
  if (std::ssize(values) != identity.size)
    throw NetworkError(fmt::format(
        "group \"{}\": {} values for {} ranks in the store\n"
        "  next:    start every rank with the same build of Lockstep",
        identity.name, values.size(), identity.size));
  for (std::string& value : values) value.erase(0, 1);
  return values;
}

}  // namespace lockstep
