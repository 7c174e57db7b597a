#include "lockstep/comm/card_exchange.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<std::string> exchange_cards(const GroupIdentity& identity,
                                        const std::string& subject,
                                        const std::string& mine, Store& store,
                                        Deadline deadline) {
  const auto key = [&](int rank) {
    return fmt::format("group/{}/{}/{}", identity.name, subject, rank);
  };
  store.set(key(identity.rank), to_bytes(mine), deadline);
  std::vector<std::string> cards;
  for (int rank = 0; rank < identity.size; ++rank) {
    try {
      cards.push_back(to_text(store.get(key(rank), deadline)));
    } catch (const Timeout&) {
      throw Timeout(fmt::format(
          "group \"{}\" of {} ranks could not form: timed out on {}\n"
          "  missing: {}\n  next:    read rank {}'s log",
          identity.name, identity.size, identity.describe(identity.rank),
          identity.describe(rank), identity.rank_in_job(rank)));
    }
  }
  return cards;
}

}  // namespace lockstep
