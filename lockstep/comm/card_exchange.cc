#include "lockstep/comm/card_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kLookAround{50};

Bytes get(Store& store, const std::string& key, const CardWait& wait) {
  while (wait.look_around) {
    const Deadline next = std::min(wait.deadline, Deadline(kLookAround));
    try {
      return store.get(key, next);
    } catch (const Timeout&) {
      if (wait.deadline.expired()) throw;
    }
    wait.look_around();
  }
  return store.get(key, wait.deadline);
}

}  // namespace

std::vector<std::string> exchange_cards(const GroupIdentity& identity,
                                        const std::string& subject,
                                        const std::string& mine, Store& store,
                                        const CardWait& wait) {
  const auto key = [&](int rank) {
    return fmt::format("group/{}/{}/{}", identity.name, subject, rank);
  };
  store.set(key(identity.rank), to_bytes(mine), wait.deadline);
  std::vector<std::string> cards;
  for (int rank = 0; rank < identity.size; ++rank) {
    try {
      cards.push_back(to_text(get(store, key(rank), wait)));
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
