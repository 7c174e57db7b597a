// Keeps the last operations of a rank and writes them to a file when one fails
// or on request: `lockstep blame` compares the files of all ranks and names the
// rank at fault.
//
// ProcessGroup tells its GroupRecorder of each operation around Backend::start,
// once for all backends; a pending Work reports its outcome. A World has one
// Recorder. The Recorder may outlive the World: Works and backends own it too,
// while it keeps neither a group nor a backend alive.
//
// Threads: every method may be called from any thread. The work per operation
//          takes no lock and allocates nothing, except for the few operations
//          that fail or have their own PendingWork.
// Errors:  none thrown: a record that cannot be written is reported in the log.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/mutex.h"
#include "src/comm/diagnosis/operation_ring.h"
#include "src/comm/diagnosis/record.h"
#include "src/comm/operation/backend.h"
#include "src/faults/fault_note.h"
#include "src/net/step_memory.h"

namespace lockstep {

// The data of a group, kept for as long as the ring may refer to it.
class RecordedGroup {
 public:
  RecordedGroup(std::uint32_t id, GroupIdentity identity,
                const std::shared_ptr<Backend>& backend);

  std::uint32_t id() const { return id_; }
  const GroupIdentity& identity() const { return identity_; }

  // Whether its operations can still go on: the rank has not left, and no
  // operation failed.
  bool alive() const { return !left_.load() && !failed_.load(); }

  // The ranks that the operation behind `entry` waits for; empty if it waits
  // for no rank or the ranks are unknown.
  std::vector<int> missing(const RingEntry& entry) const noexcept;

  GroupRecord snapshot() const;

 private:
  friend class GroupRecorder;
  friend class Recorder;

  std::shared_ptr<PendingWork> pending_of(std::uint64_t number) const;
  void keep(std::uint64_t number, std::weak_ptr<PendingWork> work);

  const std::uint32_t id_;
  const GroupIdentity identity_;
  const std::string backend_name_;
  // Set if the backend itself is every operation's PendingWork.
  const std::weak_ptr<PendingWork> backend_;
  std::atomic<bool> left_{false};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> last_number_{0};
  std::atomic<std::uint64_t> last_started_{0};
  std::atomic<std::uint64_t> last_completed_{0};
  // Other PendingWorks, by the number of their operation; expired ones are
  // dropped from time to time.
  mutable Mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<PendingWork>> works_
      LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t drop_at_ LOCKSTEP_GUARDED_BY(mutex_) = 64;
};

// "12 s", "0.5 s".
std::string describe_seconds(std::chrono::duration<double> time);

// An operation that has started and has not ended as far as known.
struct PendingOperation {
  RingEntry entry;
  std::shared_ptr<const RecordedGroup> group;
};

class Recorder {
 public:
  using Time = RingEntry::Time;

  // The folder for dumps, and the file for a FaultNote; empty: none is written.
  // `steps`: where `lockstep status` reads this rank's steps; null: nowhere.
  explicit Recorder(std::string dump_directory,
                    std::unique_ptr<StepWriter> steps = nullptr,
                    std::string fault_file = {});

  // The first group is the job's own: rank() and world_size() come from it.
  std::shared_ptr<RecordedGroup> add_group(
      const GroupIdentity& identity, const std::shared_ptr<Backend>& backend);

  int rank() const { return rank_.load(); }
  int world_size() const { return world_size_.load(); }

  // The job's unique name, RankRecord::job: the name that this rank suggests,
  // and the name that all ranks agree on.
  std::string suggest_job() const;
  void set_job(std::string name);

  OperationRing& ring() { return ring_; }

  // The total time that callers have spent in Work::wait() so far, for
  // operations of all groups that were not complete at the call: time until
  // other ranks came, and until data were moved and combined, which a waiting
  // thread may take part in. Threads that wait at the same time count
  // separately. Failed operations do not count. The value never decreases.
  std::chrono::nanoseconds time_waited() const;

  // Null where no reader is.
  StepWriter* steps() { return steps_.get(); }
  // The gradients of a backward pass have been reduced: a step, unless the
  // program reports its steps itself. One thread at a time.
  void count_reduced_pass();

  // The pending operations of groups that are alive, oldest first.
  std::vector<PendingOperation> pending() const;

  // This rank's activity, as a phrase for other ranks' messages: 'on host b,
  // busy with its own work for 12 s, after all_reduce #410'.
  std::string describe_activity(Time now) const;

  // Notes that `error` left the wait of operation `number`, and dumps.
  void note_failure(const RecordedGroup& group, std::uint64_t number,
                    const std::exception_ptr& error) noexcept;

  // Notes that this rank is about to fail because of another one.
  // kLeavesGroups: the error has ended no group, so a rank that starts another
  // operation has gone on, and the note is removed.
  enum class AfterFault { kEndsGroup, kLeavesGroups };
  void note_fault(const FaultNote& note, AfterFault after) noexcept;
  // Called for each operation that starts.
  void note_operation() noexcept {
    if (may_go_on_.load(std::memory_order_relaxed)) go_on();
  }

  // Writes the record to the dump directory, if there is one.
  void dump(std::string_view reason) noexcept;

  RankRecord snapshot(std::string_view reason) const;

 private:
  friend class GroupRecorder;

  std::shared_ptr<const RecordedGroup> find_group(std::uint32_t id) const;
  void go_on() noexcept;
  void drop_forgotten_groups() LOCKSTEP_REQUIRES(mutex_);
  // "all_reduce #410"; empty once the ring has overwritten it.
  std::string name_of_call(std::uint64_t number) const;

  const std::string dump_directory_;
  const std::string fault_file_;
  // The file has a note of an error that has ended no group.
  std::atomic<bool> may_go_on_{false};
  const std::string host_;
  const std::unique_ptr<StepWriter> steps_;
  OperationRing ring_;
  const TickMoment made_{};
  std::atomic<std::uint64_t> ticks_waited_{0};
  mutable std::atomic<std::chrono::nanoseconds> most_waited_{};  // returned
  std::atomic<int> rank_{0};
  std::atomic<int> world_size_{1};
  mutable Mutex mutex_;
  std::string job_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint32_t next_group_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<std::uint32_t, std::shared_ptr<RecordedGroup>> groups_
      LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<FailureRecord> failures_ LOCKSTEP_GUARDED_BY(mutex_);
  Mutex file_;  // held while the file is written
};

// The number in the job of a group's `rank`; -1 if the group has none of this
// number.
int culprit_in_job(const GroupIdentity& identity, int rank);

// Records the operations of one group.
class GroupRecorder final : public WorkObserver,
                            public std::enable_shared_from_this<GroupRecorder> {
 public:
  GroupRecorder(std::shared_ptr<Recorder> recorder,
                const GroupIdentity& identity,
                const std::shared_ptr<Backend>& backend);

  // Called before and after Backend::start. `started` makes a pending Work
  // report its outcome.
  std::uint64_t begin(const Operation& operation);
  void started(std::uint64_t number, const Operation& operation, Work& work);

  // Called by the Work of operation `number`.
  void awaited(std::uint64_t number) override {
    recorder_->ring().set_awaited(number);
  }
  void blocks() noexcept override {
    if (StepWriter* const steps = recorder_->steps()) steps->enters_wait();
  }
  void goes_on() noexcept override {
    if (StepWriter* const steps = recorder_->steps()) steps->leaves_wait();
  }
  void completed(std::uint64_t number) override;
  // The same, for a caller that has waited since read_ticks() returned `since`.
  void completed_for_waiter(std::uint64_t number, std::uint64_t since) override;
  // The operation's wait throws `error`.
  void failed(std::uint64_t number,
              const std::exception_ptr& error) noexcept override;

  // This rank has left the group: its pending operations will never complete.
  void leave() { group_->left_.store(true); }

 private:
  void note_completed(std::uint64_t sequence);

  const std::shared_ptr<Recorder> recorder_;
  const std::shared_ptr<RecordedGroup> group_;
  // The backend as a PendingWork, only for comparisons; null if it is not one.
  const PendingWork* const own_work_;
};

}  // namespace lockstep
