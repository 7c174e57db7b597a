#include "apps/blame/blame_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "apps/blame/blame_waits.h"
#include "src/base/first_line.h"
#include "src/base/report_text.h"
#include "src/launch/record/failure_report.h"

namespace lockstep {
namespace {

std::string quoted_group(const GroupRecord& group) {
  return fmt::format("group \"{}\"", group.shown_name());
}

// Such a process may have written its record when the launcher continued it.
bool was_stopped(const Evidence& evidence, int rank) {
  return evidence.job && std::ranges::find(evidence.job->stopped, rank) !=
                             evidence.job->stopped.end();
}

// A rank's last known activity, as a sentence.
std::string last_seen(const Evidence& evidence, int r) {
  if (was_stopped(evidence, r))
    return fmt::format(
        "A signal (SIGSTOP or SIGTSTP) had stopped the process of rank {}.", r);
  const RankRecord* rank = evidence.find(r);
  if (rank == nullptr)
    return fmt::format(
        "Rank {} left no record: it was dead, stopped or unreachable.", r);
  if (rank->operations.empty())
    return fmt::format("Rank {} (on host {}) had called nothing yet.", r,
                       rank->host);
  const OperationRecord& last = rank->operations.back();
  if (last.state == OperationState::kStarted)
    return fmt::format(
        "Rank {} (on host {}) was last seen in {}, which it started {:.1f} s "
        "before its record was written{}.",
        r, rank->host, describe(last), rank->written_at - last.started_at,
        last.awaited ? "" : "; it did its own work since");
  return fmt::format(
      "Rank {} (on host {}) did its own work: its last operation, {}, {} "
      "{:.1f} "
      "s before its record was written.",
      r, rank->host, describe(last), name_of(last.state),
      rank->written_at - last.ended_at);
}

void put_operation(BlameVerdict& verdict, const Wait& wait) {
  verdict.group = wait.group->shown_name();
  verdict.operation = describe(*wait.operation);
}

// The operations in which others missed `rank`: those that failed because of
// it, and those that still wait for it.
std::vector<Wait> find_missed(const Evidence& evidence, int rank) {
  std::vector<Wait> missed;
  for (const RankRecord& record : evidence.records) {
    const FailureRecord* failure = first_failure(record);
    if (failure == nullptr || failure->culprit != rank) continue;
    if (auto wait = find_wait(evidence, record, failure->operation))
      missed.push_back(std::move(*wait));
  }
  for (Wait& wait : find_waits(evidence))
    if (std::ranges::find(wait.late, rank) != wait.late.end() &&
        std::ranges::find(missed, wait.rank, &Wait::rank) == missed.end())
      missed.push_back(std::move(wait));
  return missed;
}

// The end of the worker as the launcher saw it.
void put_end(BlameVerdict& verdict, const JobRecord& job) {
  constexpr int kKill = 9;
  verdict.paragraph += fmt::format(
      " {} {:.1f} s after the job began.",
      describe(ExitStatus{.code = job.exit_code, .signal = job.signal}),
      job.seconds);
  // As in a shell.
  const bool killed = job.signal == kKill || job.exit_code == 128 + kKill;
  if (killed)
    verdict.likely =
        "another process killed it, or the kernel did because memory ran out "
        "(then dmesg says \"Out of memory\")";
}

BlameVerdict judge_death(const Evidence& evidence, const Root& root) {
  BlameVerdict verdict{.fault = RootFault::kDeath, .ranks = {root.rank}};
  verdict.paragraph =
      fmt::format("Rank {} of {}", root.rank, evidence.world_size());
  const auto& job = evidence.job;
  const bool launcher_knows = job && job->rank == root.rank;
  if (launcher_knows)
    put_end(verdict, *job);
  else
    verdict.paragraph += " died, or left while it was needed.";
  const std::vector<Wait> missed = find_missed(evidence, root.rank);
  if (!missed.empty()) {
    std::vector<int> ranks;
    for (const Wait& wait : missed) ranks.push_back(wait.rank->rank);
    put_operation(verdict, missed.front());
    verdict.paragraph +=
        fmt::format(" It was missed by {}, in {} of {}.", name_ranks(ranks),
                    verdict.operation, quoted_group(*missed.front().group));
  }
  if (root.failure != nullptr && !launcher_knows)
    verdict.paragraph += fmt::format(" Rank {} says: {}.", root.witness->rank,
                                     first_line(root.failure->message));
  if (evidence.find(root.rank) != nullptr)
    verdict.paragraph += " " + last_seen(evidence, root.rank);
  verdict.next = fmt::format("read the last output of rank {}", root.rank);
  return verdict;
}

// The calls without their places, which may differ between ranks that call the
// same operation. The text of a call has the place of all its ranks, if they
// have the same.
std::vector<Call> calls_at_any_place(const Disagreement& disagreement) {
  std::map<std::string, Call> kinds;
  for (const auto& caller : disagreement.callers) {
    const std::string kind = describe(caller.operation->signature);
    const std::string whole = describe(*caller.operation);
    Call& call = kinds.try_emplace(kind, Call{whole, {}}).first->second;
    if (call.call != whole) call.call = kind;
    call.ranks.push_back(caller.rank);
  }
  std::vector<Call> calls;
  for (auto& [kind, call] : kinds) calls.push_back(std::move(call));
  return calls;
}

BlameVerdict judge_disagreement(const Evidence& evidence,
                                const Disagreement& disagreement) {
  BlameVerdict verdict{.fault = RootFault::kDisagreement,
                       .group = disagreement.group->shown_name()};
  std::map<std::string, std::vector<int>> calls;
  for (const auto& caller : disagreement.callers)
    calls[describe(*caller.operation)].push_back(caller.rank);
  for (auto& [call, ranks] : calls) verdict.calls.push_back({call, ranks});
  const std::vector<Call> kinds = calls_at_any_place(disagreement);
  // The minority is more likely wrong; with two equal groups the verdict blames
  // neither.
  const auto [fewest, most] = std::ranges::minmax_element(
      kinds, {}, [](const Call& call) { return call.ranks.size(); });
  if (fewest->ranks.size() < most->ranks.size()) verdict.ranks = fewest->ranks;
  verdict.operation = most->call;
  const std::uint64_t sequence =
      disagreement.callers.front().operation->signature.sequence;
  verdict.paragraph = fmt::format(
      "The {} ranks of {} called operations that do not fit together: number "
      "{} of the group's collectives was not the same everywhere.",
      disagreement.group->size, quoted_group(*disagreement.group), sequence);
  if (kinds.size() == 1)
    verdict.paragraph +=
        " They differ in the sizes within the list of buffers.";
  if (!verdict.ranks.empty())
    verdict.paragraph +=
        fmt::format(" Against the others: {}.", name_ranks(verdict.ranks));
  if (!evidence.silent().empty())
    verdict.paragraph += fmt::format(" There is no record of {}.",
                                     name_ranks(evidence.silent()));
  verdict.likely =
      "the ranks took different branches, or one ran a step more than the "
      "others";
  verdict.next =
      "make every rank call the same operations in the same order, with the "
      "same sizes and types; CallOptions::place gives a call a name";
  return verdict;
}

// An error whose own message suffices.
BlameVerdict judge_error(const Root& root) {
  BlameVerdict verdict{.fault = root.fault, .ranks = {root.rank}};
  const GroupRecord* group = root.witness->find_group(root.failure->group);
  if (group != nullptr) verdict.group = group->shown_name();
  verdict.paragraph = fmt::format("Rank {} (on host {}) failed with {}: {}",
                                  root.rank, root.witness->host,
                                  root.failure->type, root.failure->message);
  if (root.fault == RootFault::kNetwork) {
    verdict.likely =
        "the host or the process that it was connected to is gone, or the "
        "network between them";
    verdict.next =
        "see whether the host that serves the store, and those of the ranks "
        "without a record, can be reached";
  } else {
    verdict.next = fmt::format("read rank {}'s log", root.rank);
  }
  return verdict;
}

bool is_message(const OperationRecord& operation) {
  return is_point_to_point(
      static_cast<OperationKind>(operation.signature.kind));
}

std::string_view how_it_waits(const Wait& wait) {
  return wait.operation->state == OperationState::kStarted ? "has waited"
                                                           : "gave up after";
}

BlameVerdict judge_absence(const Evidence& evidence, const Wait& wait) {
  BlameVerdict verdict{.fault = RootFault::kAbsence, .ranks = wait.late};
  put_operation(verdict, wait);
  verdict.paragraph =
      fmt::format("{} of {} did not {} {} of {}, in which rank {} {} {:.1f} s.",
                  name_ranks(wait.late), evidence.world_size(),
                  is_message(*wait.operation) ? "do its part of" : "come to",
                  verdict.operation, quoted_group(*wait.group), wait.rank->rank,
                  how_it_waits(wait), wait.seconds());
  verdict.paragraph.front() = 'R';
  constexpr std::size_t kMostShown = 3;
  for (std::size_t i = 0; i < std::min(wait.late.size(), kMostShown); ++i)
    verdict.paragraph += " " + last_seen(evidence, wait.late[i]);
  verdict.likely =
      "it does work that the others do not, it has fewer batches than the "
      "others, or its process or host has stopped";
  verdict.next = fmt::format(
      "check what rank {} does; give every rank the same work, or raise "
      "LOCKSTEP_TIMEOUT",
      wait.late.front());
  if (was_stopped(evidence, wait.late.front())) {
    verdict.likely =
        "a user, a scheduler or the rank itself sent the signal; its work may "
        "be right";
    verdict.next =
        fmt::format("find out what stopped rank {}, and start the job again",
                    wait.late.front());
  }
  return verdict;
}

// The line of a message that names the missing ranks, or "".
std::string missing_line(const FailureRecord& failure) {
  const std::size_t at = failure.message.find("missing: ");
  return at == std::string::npos ? "" : first_line(failure.message.substr(at));
}

BlameVerdict judge_stuck(const Wait& wait) {
  BlameVerdict verdict{.fault = RootFault::kStuck};
  put_operation(verdict, wait);
  verdict.paragraph = fmt::format(
      "Every rank of {} that left a record has come to {}, in which rank {} {} "
      "{:.1f} s.",
      quoted_group(*wait.group), verdict.operation, wait.rank->rank,
      how_it_waits(wait), wait.seconds());
  if (const FailureRecord* failure = first_failure(*wait.rank))
    if (const std::string missing = missing_line(*failure); !missing.empty())
      verdict.paragraph += fmt::format(" It says: {}.", missing);
  verdict.likely =
      "a rank was stopped in the middle of it, or the data is still on its way";
  verdict.next = "ask for the records once more, and compare";
  return verdict;
}

BlameVerdict judge_circle(const std::vector<Wait>& circle) {
  BlameVerdict verdict{.fault = RootFault::kCircle};
  put_operation(verdict, circle.front());
  verdict.paragraph = "Ranks wait for each other, in a circle:";
  for (std::size_t i = 0; i < circle.size(); ++i) {
    const Wait& wait = circle[i];
    verdict.ranks.push_back(wait.rank->rank);
    verdict.paragraph += fmt::format(
        "{} rank {} waits in {} of {} for rank {}", i == 0 ? "" : ",",
        wait.rank->rank, describe(*wait.operation), quoted_group(*wait.group),
        circle[(i + 1) % circle.size()].rank->rank);
  }
  verdict.paragraph += ".";
  verdict.likely = "they call operations of several groups in different orders";
  verdict.next =
      "call them in the same order on every rank, or batch sends and receives";
  return verdict;
}

const Wait* find_wait_of(const std::vector<Wait>& waits, int rank) {
  for (const Wait& wait : waits)
    if (wait.rank->rank == rank) return &wait;
  return nullptr;
}

// Follows the waits from a rank to the rank it waits for, and so on, up to a
// rank that does not wait or that was already visited.
BlameVerdict follow(const Evidence& evidence, const std::vector<Wait>& waits,
                    const Wait& start) {
  std::vector<Wait> way;
  const Wait* at = &start;
  while (!at->late.empty()) {
    const auto seen = std::ranges::find(way, at->rank, &Wait::rank);
    if (seen != way.end()) return judge_circle({seen, way.end()});
    way.push_back(*at);
    const Wait* next = nullptr;
    for (const int rank : at->late) {
      next = find_wait_of(waits, rank);
      if (next == nullptr) return judge_absence(evidence, *at);
    }
    at = next;
  }
  return judge_stuck(*at);
}

BlameVerdict judge_waits(const Evidence& evidence) {
  // The records of a running job are written at slightly different times, so
  // short waits mean nothing.
  constexpr double kShortSeconds = 1;
  std::vector<Wait> waits = find_waits(evidence);
  std::erase_if(
      waits, [](const Wait& wait) { return wait.seconds() < kShortSeconds; });
  if (waits.empty())
    return {.paragraph =
                "No rank that left a record has an error or has waited a "
                "second for another.",
            .next =
                "ask for the records while the job hangs: send SIGUSR1 to "
                "`lockstep run`"};
  if (const auto disagreement = find_disagreement(evidence))
    return judge_disagreement(evidence, *disagreement);
  const auto longest = std::ranges::max_element(waits, {}, &Wait::seconds);
  return follow(evidence, waits, *longest);
}

}  // namespace

BlameVerdict judge(const Evidence& evidence) {
  const auto root = find_root(evidence);
  if (!root) return judge_waits(evidence);
  if (root->fault == RootFault::kDeath) return judge_death(evidence, *root);
  const bool ranks_may_differ = root->fault == RootFault::kDisagreement ||
                                root->fault == RootFault::kAbsence;
  if (ranks_may_differ)
    if (const auto disagreement = find_disagreement(evidence))
      return judge_disagreement(evidence, *disagreement);
  if (root->fault == RootFault::kAbsence) {
    const auto wait =
        find_wait(evidence, *root->witness, root->failure->operation);
    if (wait)
      return wait->late.empty() ? judge_stuck(*wait)
                                : judge_absence(evidence, *wait);
  }
  return judge_error(*root);
}

}  // namespace lockstep
