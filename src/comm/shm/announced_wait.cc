#include "src/comm/shm/announced_wait.h"

namespace lockstep {
namespace {

// The values of RankArea::awaits. A block of zeros is a group whose ranks do
// not wait.
constexpr std::uint32_t kNothing = 0;
constexpr std::uint32_t kCollective = 1;
constexpr std::uint32_t kAnyMessage = 2;
constexpr std::uint32_t kMessageOfRank0 = 3;

std::uint32_t encode(std::optional<int> peer) {
  if (!peer) return kCollective;
  if (*peer == kAnySource) return kAnyMessage;
  return kMessageOfRank0 + static_cast<std::uint32_t>(*peer);
}

std::int64_t now() { return Deadline::Clock::now().time_since_epoch().count(); }

}  // namespace

void AnnouncedWait::renew(std::optional<int> peer) {
  is_announced_ = true;
  area_.awaits.store(encode(peer));
  area_.awaited_at.store(now());
}

void AnnouncedWait::end() {
  if (is_announced_) area_.awaits.store(kNothing);
}

std::optional<AwaitedRanks> wait_of(const ShmContext& context, int rank,
                                    Deadline::Clock::duration recently) {
  const RankArea& area = context.control.rank(rank);
  const std::int64_t age = now() - area.awaited_at.load();
  const std::uint32_t awaits = area.awaits.load();
  if (awaits == kNothing || age > recently.count()) return std::nullopt;
  if (awaits == kAnyMessage) return AwaitedRanks{{}, true};
  if (awaits >= kMessageOfRank0)
    return AwaitedRanks{{static_cast<int>(awaits - kMessageOfRank0)}};
  AwaitedRanks awaited{context.rounds->awaited_by(rank)};
  if (awaited.ranks.empty()) return std::nullopt;  // its round is complete
  return awaited;
}

}  // namespace lockstep
