#include "src/comm/rendezvous/store_all_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "lockstep/base/error.h"
#include "src/comm/operation/peer_checks.h"

namespace lockstep {
namespace {

// Empty if the deadline passes first.
std::optional<Bytes> get(Store& store, const std::string& key,
                         const GatherWait& wait) {
  for (;;) {
    try {
      return store.get(
          key, wait.check_peers
                   ? std::min(wait.deadline, Deadline(kPeerCheckInterval))
                   : wait.deadline);
    } catch (const Timeout&) {
      if (wait.deadline.expired()) return std::nullopt;
    }
    if (wait.check_peers) wait.check_peers();
  }
}

}  // namespace

std::vector<std::string> store_all_gather(const GroupIdentity& identity,
                                          const std::string& subject,
                                          const std::string& mine, Store& store,
                                          const GatherWait& wait) {
  const auto key = [&](int rank) {
    return fmt::format("group/{}/{}/{}", identity.name, subject, rank);
  };
  store.set(key(identity.rank), to_bytes(mine), wait.deadline);
  std::vector<std::string> cards;
  for (int rank = 0; rank < identity.size; ++rank) {
    const auto card = get(store, key(rank), wait);
    if (!card)
      throw Timeout(fmt::format(
          "group \"{}\" of {} ranks could not form: timed out on {}\n"
          "  missing: {}\n  next:    read rank {}'s log",
          identity.name, identity.size, identity.describe(identity.rank),
          identity.describe(rank), identity.rank_in_job(rank)));
    cards.push_back(to_text(*card));
  }
  return cards;
}

}  // namespace lockstep
