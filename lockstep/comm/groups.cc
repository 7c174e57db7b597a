#include "lockstep/comm/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

void check_ranks(const ProcessGroup& parent, std::span<const int> ranks) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format(
        "new_group [{}]: {} (group \"{}\" has ranks 0 to {})",
        fmt::join(ranks, ", "), why, parent.name(), parent.size() - 1));
  };
  if (ranks.empty()) refuse("a group needs at least one rank");
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::ranges::sort(sorted);
  if (sorted.front() < 0 || sorted.back() >= parent.size())
    refuse("there is no such rank");
  if (std::ranges::adjacent_find(sorted) != sorted.end())
    refuse("a rank stands there twice");
}

World& world_of(const ProcessGroup& parent) {
  if (!parent.world())
    throw InvalidArgument(fmt::format(
        "group \"{}\" was made by hand, so no group can be made from it; use "
        "make_group() or init_process_group()",
        parent.name()));
  return *parent.world();
}

}  // namespace

std::shared_ptr<ProcessGroup> new_group(ProcessGroup& parent,
                                        std::span<const int> ranks,
                                        const GroupOptions& options) {
  check_ranks(parent, ranks);
  GroupIdentity identity{.rank = -1, .size = static_cast<int>(ranks.size())};
  for (int r = 0; r < identity.size; ++r) {
    const int in_parent = ranks[static_cast<std::size_t>(r)];
    if (in_parent == parent.rank()) identity.rank = r;
    identity.members.push_back(parent.identity().rank_in_job(in_parent));
  }
  identity.name = fmt::format("[{}]", fmt::join(identity.members, ","));
  if (identity.rank < 0)
    return std::make_shared<ProcessGroup>(nullptr, identity, parent.timeout(),
                                          parent.world());
  identity.name = world_of(parent).numbered(identity.name);
  return make_group(
      options.backend.empty() ? parent.backend() : options.backend, identity,
      parent.world(), options.timeout.value_or(parent.timeout()));
}

std::shared_ptr<ProcessGroup> split(ProcessGroup& parent, Color mine,
                                    const GroupOptions& options) {
  std::vector<int> own{mine.color, mine.key};
  std::vector<int> all(2 * static_cast<std::size_t>(parent.size()));
  parent.all_gather(view(own), view(all), {.place = "split"}).wait();
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < parent.size(); ++r) {
    const auto at = 2 * static_cast<std::size_t>(r);
    if (all[at] == mine.color) members.emplace_back(all[at + 1], r);
  }
  std::ranges::sort(members);
  std::vector<int> ranks;
  for (const auto& [key, rank] : members) ranks.push_back(rank);
  if (mine.color >= 0) return new_group(parent, ranks, options);
  return std::make_shared<ProcessGroup>(
      nullptr, GroupIdentity{.name = "no color", .rank = -1}, parent.timeout(),
      parent.world());
}

}  // namespace lockstep
