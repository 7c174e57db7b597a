#include "src/comm/rendezvous/store_all_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "lockstep/base/error.h"
#include "src/comm/operation/peer_checks.h"
#include "src/comm/rendezvous/formation.h"
#include "src/store/peek.h"
#include "src/store/store_protocol.h"

namespace lockstep {
namespace {

// All values as one.
Bytes join(const std::vector<Bytes>& values) {
  std::vector<const Bytes*> pointers;
  for (const Bytes& value : values) pointers.push_back(&value);
  return encode_values(pointers);
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
  const std::string root =
      fmt::format("group/{}/{}/", identity.full_name(), subject);
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
  std::vector<std::string> values;
  for (const Bytes& value : parse_values(store.get(all, kStoreAnswers)))
    values.push_back(to_text(value).erase(0, 1));
  if (std::ssize(values) != identity.size)
    throw NetworkError(fmt::format(
        "group \"{}\": {} values for {} ranks in the store\n"
        "  next:    start every rank with the same build of Lockstep",
        identity.name, values.size(), identity.size));
  return values;
}

}  // namespace lockstep
