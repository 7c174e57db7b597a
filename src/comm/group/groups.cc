#include "lockstep/comm/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/group/group_core.h"
#include "src/comm/rendezvous/formation.h"

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
    refuse("a rank is out of range");
  if (std::ranges::adjacent_find(sorted) != sorted.end())
    refuse("a rank occurs twice");
}

World& world_of(const ProcessGroup& parent) {
  if (!parent.core().world())
    throw InvalidArgument(fmt::format(
        "group \"{}\" was made by hand, so no group can be made from it; use "
        "make_group() or init_process_group()",
        parent.name()));
  return *parent.core().world();
}

// Throws unless `group` can be used for new groups and barriers.
void check_usable(std::string_view call, const ProcessGroup& group) {
  group.core().check_process();
  if (group.backend() == "none")
    throw InvalidArgument(fmt::format(
        "{}: group \"{}\" {}", call, group.name(),
        group.is_member() ? "was destroyed; make a new one"
                          : "does not have this rank as a member; ask "
                            "is_member() first"));
}

// Numbers the group of `identity` among the groups with the same members. If
// the other ranks have given up on that group already, this rank gets their
// error and continues with their next number.
void number_group(World& world, GroupIdentity& identity) {
  const std::string members = identity.name;
  std::exception_ptr missed;
  while (true) {
    identity.name = world.next_number(members);
    const auto failure = failure_to_form(identity, *world.store());
    if (!failure) break;
    missed = failure;
    world.numbered(members);
  }
  if (missed) std::rethrow_exception(missed);
  world.numbered(members);
}

// For calls that the store answers without waiting for a rank.
constexpr std::chrono::minutes kNewGroupAnswers{1};

// One call of monitored_barrier. Each rank claims its own key with `here`; a
// rank that gives up on another claims that rank's key with `late`. The first
// claim stands, so that all ranks agree on who came, even in close races.
class MonitoredBarrier {
 public:
  MonitoredBarrier(const ProcessGroup& group, std::chrono::nanoseconds timeout)
      : group_(group),
        timeout_(timeout),
        name_(world_of(group).numbered("monitored_barrier/" + group.name())),
        store_(group.core().world()->store()) {}

  void run() {
    const Deadline deadline(timeout_);
    if (!claim(group_.rank(), kHere)) fail(read_verdict(), Late::kThisRank);
    const std::string late =
        group_.rank() == 0 ? collect(deadline) : hear(deadline);
    if (!late.empty()) fail(late, Late::kOthers);
  }

 private:
  enum class Late { kThisRank, kOthers };
  static constexpr std::string_view kHere = "here";
  static constexpr std::string_view kLate = "late";
  static constexpr std::chrono::seconds kHearing{5};

  std::string key(int rank) const { return fmt::format("{}/{}", name_, rank); }
  std::string heard_key(int rank) const { return key(rank) + "/heard"; }
  std::string verdict_key() const { return name_ + "/verdict"; }

  // Whether `state` is the claim that stands for `rank`.
  bool claim(int rank, std::string_view state) {
    const Bytes stands = store_->compare_and_set(
        key(rank), std::nullopt, to_bytes(state), kNewGroupAnswers);
    return to_text(stands) == state;
  }

  // Whether `rank` has come by the deadline.
  bool awaits(int rank, Deadline deadline) {
    try {
      return to_text(store_->get(key(rank), deadline)) == kHere;
    } catch (const Timeout&) {
      return !claim(rank, kLate);
    }
  }

  // Rank 0: waits for all ranks, and announces the late ones.
  std::string collect(Deadline deadline) {
    std::vector<int> came;
    std::vector<int> late;
    for (int rank = 1; rank < group_.size(); ++rank)
      (awaits(rank, deadline) ? came : late).push_back(rank);
    std::string verdict = late.empty() ? "" : say_missing(late);
    store_->set(verdict_key(), to_bytes(verdict), kNewGroupAnswers);
    wait_for_hearers(came);
    return verdict;
  }

  // Rank 0 waits until the others have its verdict, because it may serve the
  // store and end now; but not for long, because they may have ended.
  void wait_for_hearers(const std::vector<int>& ranks) {
    const Deadline deadline(kHearing);
    try {
      for (const int rank : ranks) store_->get(heard_key(rank), deadline);
      if (std::ssize(ranks) + 1 == group_.size()) clean_up();
    } catch (const NetworkError&) {  // the store has ended after the verdict
    } catch (const Timeout&) {
    }
  }

  // Another rank: waits for rank 0, then for its verdict. Rank 0 may come at
  // the last moment, and has its own `timeout` from then on.
  std::string hear(Deadline deadline) {
    if (!awaits(0, deadline)) return say_missing({0});
    std::string verdict = read_verdict("the answer of ");
    try {
      store_->set(heard_key(group_.rank()), {}, kHearing);
    } catch (const NetworkError&) {  // rank 0 waits no longer
    } catch (const Timeout&) {
    }
    return verdict;
  }

  // The late ranks in rank 0's verdict; `what` and rank 0 if it wrote none.
  std::string read_verdict(std::string_view what = "") {
    if (group_.rank() == 0) return say_missing({0});
    try {
      return to_text(store_->get(
          verdict_key(),
          std::chrono::duration<double>(timeout_) + kNewGroupAnswers));
    } catch (const Timeout&) {
      return fmt::format("{}{}", what, say_missing({0}));
    }
  }

  std::string say_missing(const std::vector<int>& late) const {
    return fmt::format("rank{} {}, after {} s", late.size() > 1 ? "s" : "",
                       fmt::join(late, ", "),
                       std::chrono::duration<double>(timeout_).count());
  }

  // All ranks have come, and have the verdict.
  void clean_up() {
    for (int rank = 0; rank < group_.size(); ++rank) {
      store_->erase(key(rank), kNewGroupAnswers);
      store_->erase(heard_key(rank), kNewGroupAnswers);
    }
    store_->erase(verdict_key(), kNewGroupAnswers);
  }

  [[noreturn]] void fail(const std::string& missing, Late who) const {
    const bool others = who == Late::kOthers;
    throw Timeout(fmt::format(
        "monitored_barrier {} on rank {} of {} (group \"{}\")\n"
        "  missing: {}\n  likely:  {}\n  next:    {}",
        others ? "timed out" : "came after the others had given up",
        group_.rank(), group_.size(), group_.name(), missing,
        others ? "slow or dead, or on a code path without this barrier"
               : "this rank was slower than the others",
        others ? "read the logs of the missing ranks"
               : "find out what delayed this rank, or raise the timeout"));
  }

  const ProcessGroup& group_;
  const std::chrono::nanoseconds timeout_;
  const std::string name_;
  const std::shared_ptr<Store> store_;
};

// "[0,2,5]". The store's keys contain the name, and have a limit: of many ranks
// it has the first ones, their number, and a hash of all (FNV-1a).
std::string name_of(const std::vector<int>& members) {
  constexpr std::size_t kMostShown = 32;
  if (members.size() <= kMostShown)
    return fmt::format("[{}]", fmt::join(members, ","));
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const int member : members)
    for (int shift = 0; shift < 32; shift += 8) {
      hash ^= static_cast<std::uint64_t>(member) >> shift & 0xff;
      hash *= 0x100000001b3;
    }
  constexpr std::size_t kFirst = 8;
  return fmt::format("[{},... {} ranks, {:016x}]",
                     fmt::join(std::span(members).first(kFirst), ","),
                     members.size(), hash);
}

// The group as a process sees it that is not a member.
std::shared_ptr<ProcessGroup> make_without_member(
    const ProcessGroup& parent, const GroupIdentity& identity) {
  return std::make_shared<ProcessGroup>(std::make_unique<GroupCore>(
      nullptr, identity, parent.timeout(), parent.core().world()));
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
    identity.members.push_back(parent.core().identity().rank_in_job(in_parent));
  }
  identity.name = name_of(identity.members);
  if (identity.rank < 0) return make_without_member(parent, identity);
  check_usable("new_group", parent);
  number_group(world_of(parent), identity);
  return make_group(
      options.backend.empty() ? parent.backend() : options.backend, identity,
      parent.core().world(), options.timeout.value_or(parent.timeout()));
}

std::shared_ptr<ProcessGroup> split(ProcessGroup& parent, Color mine,
                                    const GroupOptions& options) {
  std::vector<int> own{mine.color, mine.key};
  std::vector<int> all(2 * static_cast<std::size_t>(parent.size()));
  parent.all_gather(view(own), view(all), {.label = "split"}).wait();
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < parent.size(); ++r) {
    const auto at = 2 * static_cast<std::size_t>(r);
    if (all[at] == mine.color) members.emplace_back(all[at + 1], r);
  }
  std::ranges::sort(members);
  std::vector<int> ranks;
  for (const auto& [key, rank] : members) ranks.push_back(rank);
  if (mine.color >= 0) return new_group(parent, ranks, options);
  return make_without_member(parent, {.name = "no color", .rank = -1});
}

std::vector<int> get_process_group_ranks(const ProcessGroup& group) {
  const GroupIdentity& identity = group.core().identity();
  std::vector<int> ranks = identity.members;
  if (!ranks.empty() || !group.is_member()) return ranks;
  ranks.resize(static_cast<std::size_t>(identity.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int get_global_rank(const ProcessGroup& group, int group_rank) {
  const std::vector<int> ranks = get_process_group_ranks(group);
  if (group_rank >= 0 && group_rank < static_cast<int>(ranks.size()))
    return ranks[static_cast<std::size_t>(group_rank)];
  throw InvalidArgument(
      fmt::format("get_global_rank: group \"{}\" has no rank {}: it has {} "
                  "ranks, numbered from 0\n  next:    give a rank of the group",
                  group.name(), group_rank, ranks.size()));
}

int get_group_rank(const ProcessGroup& group, int global_rank) {
  const std::vector<int> ranks = get_process_group_ranks(group);
  const auto found = std::ranges::find(ranks, global_rank);
  if (found != ranks.end()) return static_cast<int>(found - ranks.begin());
  throw InvalidArgument(
      fmt::format("get_group_rank: rank {} of the job is not in group \"{}\"\n "
                  " next:    see get_process_group_ranks()",
                  global_rank, group.name()));
}

void monitored_barrier(ProcessGroup& group, std::chrono::nanoseconds timeout) {
  check_usable("monitored_barrier", group);
  MonitoredBarrier(group, timeout).run();
}

}  // namespace lockstep
