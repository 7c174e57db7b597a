#include "src/comm/diagnosis/stall_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

OperationKind kind_of(const RingEntry& entry) {
  return static_cast<OperationKind>(entry.signature.kind);
}

// Backends need not know the rank that a message waits for; the call names it.
std::vector<int> missing_ranks(const PendingOperation& operation) {
  std::vector<int> ranks = operation.group->missing(operation.entry);
  if (ranks.empty() && operation.entry.awaited &&
      is_point_to_point(kind_of(operation.entry)) &&
      operation.entry.peer != kAnySource)
    ranks.push_back(operation.entry.peer);
  return ranks;
}

Stall to_stall(const PendingOperation& operation,
               const std::vector<int>& missing, StallWatch::Time now) {
  const RingEntry& entry = operation.entry;
  const GroupIdentity& identity = operation.group->identity();
  Stall stall{
      .operation = describe(OperationRecord{.signature = entry.signature,
                                            .peer = entry.peer,
                                            .tag = entry.tag,
                                            .label = entry.label}),
      .group = identity.name,
      .rank = identity.rank,
      .waited = now - entry.started};
  for (const int rank : missing)
    stall.missing.push_back({rank, identity.rank_in_job(rank)});
  return stall;
}

std::string describe(const Stall::Missing& missing,
                     const std::map<int, std::string>& activities) {
  std::string text = fmt::format("rank {}", missing.rank);
  if (missing.rank != missing.rank_in_job)
    text += fmt::format(", rank {} of the job,", missing.rank_in_job);
  const auto found = activities.find(missing.rank_in_job);
  return text + fmt::format(" ({})", found == activities.end()
                                         ? "which does not answer"
                                         : found->second);
}

}  // namespace

std::string describe(const Stall& stall,
                     const std::map<int, std::string>& activities) {
  std::string text = fmt::format(
      "{} of group \"{}\" on rank {} has waited {} for ", stall.operation,
      stall.group, stall.rank, describe_seconds(stall.waited));
  if (stall.missing.empty())
    return text + "no particular rank: one may have stopped halfway";
  const std::size_t named =
      std::min(stall.missing.size(), StallWatch::kMostNamed);
  for (std::size_t i = 0; i < named; ++i)
    text += (i > 0 ? ", " : "") + describe(stall.missing[i], activities);
  if (named < stall.missing.size())
    text += fmt::format(" and {} more", stall.missing.size() - named);
  return text;
}

StallWatch::StallWatch(std::shared_ptr<const Recorder> recorder,
                       std::chrono::duration<double> timeout)
    : recorder_(std::move(recorder)),
      timeout_(std::chrono::duration_cast<Time::duration>(timeout)) {}

std::vector<Stall> StallWatch::look(Time now) {
  next_look_ = now + timeout_;
  std::vector<Stall> stalls;
  std::set<std::uint32_t> stalled_groups;
  const std::vector<PendingOperation> pending = recorder_->pending();
  for (const PendingOperation& operation : pending) {
    const RingEntry& entry = operation.entry;
    if (now - entry.started < timeout_) {
      next_look_ = std::min(next_look_, entry.started + timeout_);
      continue;
    }
    if (!is_point_to_point(kind_of(entry)) &&
        stalled_groups.contains(entry.group))
      continue;
    const auto missing = missing_ranks(operation);
    if (missing.empty() && !entry.awaited) continue;  // it may be complete
    if (!is_point_to_point(kind_of(entry))) stalled_groups.insert(entry.group);
    if (reported_.insert(entry.number).second)
      stalls.push_back(to_stall(operation, missing, now));
  }
  std::erase_if(reported_, [&](std::uint64_t number) {
    return pending.empty() || number < pending.front().entry.number;
  });
  return stalls;
}

}  // namespace lockstep
