#include "src/comm/diagnosis/recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/version.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using SystemClock = std::chrono::system_clock;

constexpr std::size_t kMostFailures = 16;

// Converts times of steady_clock to seconds since 1970.
class WallTime {
 public:
  double of(RingEntry::Time time) const {
    const auto since = system_.time_since_epoch() + (time - steady_);
    return std::chrono::duration<double>(since).count();
  }

 private:
  SystemClock::time_point system_ = SystemClock::now();
  RingEntry::Time steady_ = std::chrono::steady_clock::now();
};

OperationRecord to_record(const RingEntry& entry, const WallTime& wall) {
  OperationRecord record{.number = entry.number,
                         .group = entry.group,
                         .state = entry.state,
                         .signature = entry.signature,
                         .peer = entry.peer,
                         .tag = entry.tag,
                         .label = entry.label,
                         .started_at = wall.of(entry.started),
                         .awaited = entry.awaited};
  if (entry.state != OperationState::kStarted)
    record.ended_at = wall.of(entry.ended);
  return record;
}

constexpr const char* kPeerFailure = "PeerFailure";

// The names of error.h; "Error" for any other exception.
FailureRecord classify(const RecordedGroup& group,
                       const std::exception_ptr& error) {
  FailureRecord failure{.group = group.id()};
  const auto named = [&](const char* type, const std::exception& what) {
    failure.type = type;
    failure.message = what.what();
  };
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure& peer) {
    named(kPeerFailure, peer);
    failure.culprit = culprit_in_job(group.identity(), peer.rank());
  } catch (const Mismatch& mismatch) {
    named("Mismatch", mismatch);
  } catch (const Timeout& timeout) {
    named("Timeout", timeout);
  } catch (const NetworkError& network) {
    named("NetworkError", network);
  } catch (const std::exception& other) {
    named("Error", other);
  } catch (...) {
    failure.type = "Error";
  }
  return failure;
}

}  // namespace

std::string describe_seconds(std::chrono::duration<double> time) {
  return fmt::format("{:.{}f} s", time.count(), time.count() < 9.95 ? 1 : 0);
}

Recorder::Recorder(std::string dump_directory,
                   std::unique_ptr<StepWriter> steps, std::string fault_file)
    : dump_directory_(std::move(dump_directory)),
      fault_file_(std::move(fault_file)),
      host_(own_host_name()),
      steps_(std::move(steps)) {}

std::shared_ptr<RecordedGroup> Recorder::add_group(
    const GroupIdentity& identity, const std::shared_ptr<Backend>& backend) {
  MutexLock lock(mutex_);
  if (next_group_ == 0) {
    rank_ = identity.rank_in_job(identity.rank);
    world_size_ = identity.size;
  }
  drop_forgotten_groups();
  const std::uint32_t id = next_group_++;
  auto group = std::make_shared<RecordedGroup>(id, identity, backend);
  group->last_number_.store(ring_.begun());
  groups_[id] = group;
  return group;
}

std::chrono::nanoseconds Recorder::time_waited() const {
  const TickMoment now;
  const std::uint64_t ticks = ticks_waited_.load(std::memory_order_relaxed);
  const std::chrono::nanoseconds waited =
      now.time - TickClock(made_, now).time_of(now.ticks - ticks);
  // Later estimates of a tick's length are more precise, and may be smaller.
  auto most = most_waited_.load(std::memory_order_relaxed);
  while (most < waited && !most_waited_.compare_exchange_weak(most, waited)) {
  }
  return std::max(most, waited);
}

void Recorder::count_reduced_pass() {
  if (steps_ && !steps_->reported_by_program())
    steps_->step_done(0, time_waited());
}

std::string Recorder::suggest_job() const {
  return fmt::format("{}/{}/{}", host_, ::getpid(),
                     SystemClock::now().time_since_epoch().count());
}

void Recorder::set_job(std::string name) {
  MutexLock lock(mutex_);
  job_ = std::move(name);
}

// Drops a group that was left once the ring has overwritten its operations.
void Recorder::drop_forgotten_groups() {
  const std::uint64_t begun = ring_.begun();
  std::erase_if(groups_, [&](const auto& entry) {
    const RecordedGroup& group = *entry.second;
    return group.left_.load() && !group.failed_.load() &&
           group.last_number_.load() + OperationRing::kEntries < begun;
  });
}

std::shared_ptr<const RecordedGroup> Recorder::find_group(
    std::uint32_t id) const {
  MutexLock lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second;
}

std::vector<PendingOperation> Recorder::pending() const {
  std::vector<PendingOperation> operations;
  for (RingEntry& entry : ring_.read()) {
    if (entry.state != OperationState::kStarted) continue;
    auto group = find_group(entry.group);
    if (group && group->alive())
      operations.push_back({std::move(entry), std::move(group)});
  }
  return operations;
}

std::string Recorder::describe_activity(Time now) const {
  const std::vector<RingEntry> entries = ring_.read();
  std::string text = fmt::format("on host {}, ", host_);
  if (entries.empty()) return text + "in no operation yet";
  const auto with_group = [&](const RingEntry& entry) {
    const auto group = find_group(entry.group);
    return fmt::format("{} of group \"{}\"", short_name(entry.signature),
                       group ? group->identity().name : "?");
  };
  for (const RingEntry& entry : entries)
    if (entry.state == OperationState::kStarted && entry.awaited)
      return text + fmt::format("in {} for {}", with_group(entry),
                                describe_seconds(now - entry.started));
  const RingEntry& last = entries.back();
  const Time since =
      last.state == OperationState::kStarted ? last.started : last.ended;
  return text + fmt::format("busy with its own work for {}, after {}",
                            describe_seconds(now - since), with_group(last));
}

void Recorder::note_fault(const FaultNote& note, AfterFault after) noexcept {
  const bool is_new = write_fault_note(fault_file_, note);
  if (is_new && after == AfterFault::kLeavesGroups) may_go_on_ = true;
}

void Recorder::go_on() noexcept {
  if (may_go_on_.exchange(false)) remove_fault_note(fault_file_);
}

int culprit_in_job(const GroupIdentity& identity, int rank) {
  return rank < 0 || rank >= identity.size ? -1 : identity.rank_in_job(rank);
}

std::string Recorder::name_of_call(std::uint64_t number) const {
  for (const RingEntry& entry : ring_.read())
    if (entry.number == number) return short_name(entry.signature);
  return {};
}

void Recorder::note_failure(const RecordedGroup& group, std::uint64_t number,
                            const std::exception_ptr& error) noexcept try {
  FailureRecord failure = classify(group, error);
  failure.at = WallTime().of(std::chrono::steady_clock::now());
  failure.operation = number;
  if (failure.type == kPeerFailure)
    note_fault({.culprit = failure.culprit, .operation = name_of_call(number)},
               AfterFault::kEndsGroup);
  {
    MutexLock lock(mutex_);
    if (failures_.size() < kMostFailures)
      failures_.push_back(std::move(failure));
  }
  dump("failure");
} catch (const std::exception&) {
  // Out of memory: the error in flight is more important.
}

void Recorder::dump(std::string_view reason) noexcept try {
  if (dump_directory_.empty()) return;
  MutexLock lock(file_);
  write_record(dump_directory_, snapshot(reason));
} catch (const std::exception& error) {
  log(LogLevel::kWarn, fmt::format("the record of rank {} was not written: {}",
                                   rank(), error.what()));
}

RankRecord Recorder::snapshot(std::string_view reason) const {
  const WallTime wall;
  RankRecord record{.version = std::string(version()),
                    .rank = rank(),
                    .world_size = world_size(),
                    .host = host_,
                    .pid = ::getpid(),
                    .written_at = wall.of(std::chrono::steady_clock::now()),
                    .reason = std::string(reason)};
  for (const RingEntry& entry : ring_.read())
    record.operations.push_back(to_record(entry, wall));
  MutexLock lock(mutex_);
  record.job = job_;
  record.failures = failures_;
  for (const auto& [id, group] : groups_)
    record.groups.push_back(group->snapshot());
  return record;
}

}  // namespace lockstep
