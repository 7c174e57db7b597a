#include "src/comm/nccl/pending_operations.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

PendingOperations::Pointer PendingOperations::find(std::uint64_t ticket) const {
  const auto found = pending_.find(ticket);
  return found == pending_.end() ? nullptr : found->second;
}

const Operation* PendingOperations::first() const {
  return pending_.empty() ? nullptr : &pending_.begin()->second->operation;
}

bool PendingOperations::all_launched() const {
  return std::ranges::all_of(
      pending_, [](const auto& pending) { return pending.second->launched; });
}

std::vector<int> PendingOperations::missing(std::uint64_t ticket) const {
  const Pointer pending = find(ticket);
  if (!pending) return {};
  if (is_point_to_point(pending->operation.kind))
    return {pending->operation.peer};
  return pending->check ? pending->check->missing() : std::vector<int>{};
}

// The observer learns of the backend only after its first start().
bool PendingOperations::is_done(NcclOperation& pending,
                                const WorkObserver* observer) const {
  if (pending.operation.record != kNotRecorded && observer == nullptr)
    return false;
  if (pending.check &&
      !pending.check->passed(pending.operation, place_.identity.rank,
                             place_.identity.name))
    return false;
  return pending.launched && (pending.capture != 0 || pending.ends.happened());
}

bool PendingOperations::complete(WorkObserver* observer) {
  const std::size_t before = pending_.size();
  for (auto next = pending_.begin(); next != pending_.end();) {
    NcclOperation& pending = *next->second;
    if (!is_done(pending, observer)) {
      ++next;
      continue;
    }
    if (observer != nullptr) observer->completed(pending.operation.record);
    next = pending_.erase(next);
  }
  return pending_.size() < before;
}

void PendingOperations::check_deadlines() const {
  for (const auto& [ticket, pending] : pending_)
    if (pending->deadline.expired())
      throw Timeout(describe_timeout(*pending, place_));
}

void PendingOperations::failed(WorkObserver* observer,
                               const std::exception_ptr& error) const {
  if (observer == nullptr) return;
  for (const auto& [ticket, pending] : pending_)
    observer->failed(pending->operation.record, error);
}

void PendingOperations::settle() const noexcept {
  for (const auto& [ticket, pending] : pending_)
    if (pending->check) pending->check->settle();
}

}  // namespace lockstep
