#include <algorithm>
#include <new>
#include <utility>

#include "src/comm/diagnosis/recorder.h"

namespace lockstep {

RecordedGroup::RecordedGroup(std::uint32_t id, GroupIdentity identity,
                             const std::shared_ptr<Backend>& backend)
    : id_(id),
      identity_(std::move(identity)),
      backend_name_(backend->name()),
      backend_(std::dynamic_pointer_cast<PendingWork>(backend)) {}

std::shared_ptr<PendingWork> RecordedGroup::pending_of(
    std::uint64_t number) const {
  {
    MutexLock lock(mutex_);
    const auto found = works_.find(number);
    if (found != works_.end()) return found->second.lock();
  }
  return backend_.lock();
}

std::vector<int> RecordedGroup::missing(const RingEntry& entry) const noexcept
    try {
  const auto work = pending_of(entry.number);
  return work ? work->missing(entry.ticket) : std::vector<int>{};
} catch (const std::exception&) {
  return {};
}

void RecordedGroup::keep(std::uint64_t number,
                         std::weak_ptr<PendingWork> work) {
  MutexLock lock(mutex_);
  works_[number] = std::move(work);
  // No caller asks for operations that the ring has overwritten.
  if (number > OperationRing::kEntries)
    works_.erase(works_.begin(),
                 works_.lower_bound(number - OperationRing::kEntries));
  if (works_.size() < drop_at_) return;
  std::erase_if(works_, [](const auto& kept) { return kept.second.expired(); });
  drop_at_ = std::max<std::size_t>(64, 2 * works_.size());
}

GroupRecord RecordedGroup::snapshot() const {
  return {.id = id_,
          .name = identity_.full_name(),
          .backend = backend_name_,
          .rank = identity_.rank,
          .size = identity_.size,
          .members = identity_.members,
          .left = left_.load(),
          .last_started = last_started_.load(std::memory_order_relaxed),
          .last_completed = last_completed_.load(std::memory_order_relaxed)};
}

GroupRecorder::GroupRecorder(std::shared_ptr<Recorder> recorder,
                             const GroupIdentity& identity,
                             const std::shared_ptr<Backend>& backend)
    : recorder_(std::move(recorder)),
      group_(recorder_->add_group(identity, backend)),
      own_work_(dynamic_cast<const PendingWork*>(backend.get())) {}

std::uint64_t GroupRecorder::begin(const Operation& operation) {
  recorder_->note_operation();
  const std::uint64_t number = recorder_->ring().begin(group_->id_, operation);
  group_->last_number_.store(number, std::memory_order_relaxed);
  if (!is_point_to_point(operation.kind))
    group_->last_started_.store(operation.sequence, std::memory_order_relaxed);
  return number;
}

void GroupRecorder::started(std::uint64_t number, const Operation& operation,
                            Work& work) {
  if (!work.pending_) {
    if (recorder_->ring().settle(number, OperationState::kCompleted) &&
        !is_point_to_point(operation.kind))
      note_completed(operation.sequence);
    return;
  }
  work.number_ = number;
  recorder_->ring().set_ticket(number, work.ticket_);
  if (work.pending_->observer() == nullptr) {
    MutexLock lock(group_->mutex_);
    work.pending_->tell(shared_from_this());
  }
  if (work.pending_.get() == own_work_) return;
  try {
    group_->keep(number, work.pending_);
  } catch (const std::bad_alloc&) {
    // The operation is under way: only its record suffers.
  }
}

void GroupRecorder::completed(std::uint64_t number) {
  OperationRing& ring = recorder_->ring();
  const auto signature = ring.find(number);
  if (ring.settle(number, OperationState::kCompleted) && signature &&
      !is_point_to_point(static_cast<OperationKind>(signature->kind)))
    note_completed(signature->sequence);
}

void GroupRecorder::completed_for_waiter(std::uint64_t number,
                                         std::uint64_t since) {
  recorder_->ticks_waited_.fetch_add(read_ticks() - since,
                                     std::memory_order_relaxed);
  completed(number);
}

// Callers may wait for Works in any order.
void GroupRecorder::note_completed(std::uint64_t sequence) {
  if (sequence > group_->last_completed_.load(std::memory_order_relaxed))
    group_->last_completed_.store(sequence, std::memory_order_relaxed);
}

void GroupRecorder::failed(std::uint64_t number,
                           const std::exception_ptr& error) noexcept {
  recorder_->ring().settle(number, OperationState::kFailed);
  // Later failures are consequences of the first.
  if (!group_->failed_.exchange(true))
    recorder_->note_failure(*group_, number, error);
}

}  // namespace lockstep
