#include "apps/status/job_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/launch/output/terminal_text.h"

namespace lockstep {
namespace {

using JobJson = nlohmann::ordered_json;

constexpr std::array<NamedValue<StepPart>, 3> kStepParts{{
    {"data", StepPart::kData},
    {"compute", StepPart::kCompute},
    {"waiting", StepPart::kWaiting},
}};

// Seconds per step in each part.
struct StepTimes {
  double total, data, compute, waiting;
};

StepTimes times_of(const StepWindow& window) {
  const double steps = window.steps;
  StepTimes times{.total = window.time.count() / steps,
                  .data = window.data.count() / steps,
                  .compute = 0,
                  .waiting = window.waited.count() / steps};
  // Threads that wait side by side are added up.
  times.waiting = std::min(times.waiting, times.total - times.data);
  times.waiting = std::max(times.waiting, 0.0);
  times.compute = std::max(0.0, times.total - times.data - times.waiting);
  return times;
}

// Nothing where the program does not tell how many samples its steps have.
std::optional<double> samples_per_second(const RankSteps& steps) {
  if (!steps.window || steps.window->samples == 0 ||
      steps.window->time.count() <= 0)
    return std::nullopt;
  return static_cast<double>(steps.window->samples) /
         steps.window->time.count();
}

std::string_view activity(const RankSteps& steps) {
  return steps.waits ? name_of(StepPart::kWaiting) : name_of(steps.phase);
}

JobStatus status_of(const ListedJob& job) {
  JobStatus status{.launcher = job.launcher,
                   .user = job.user,
                   .command = job.command,
                   .run_id = job.run_id,
                   .world_size = job.world_size,
                   .restarts = job.restarts,
                   .seconds = job.running.count()};
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < job.pids.size(); ++i) {
    const int local = static_cast<int>(i);
    if (job.ranks[i] < 0) continue;
    RankStatus rank{.rank = job.ranks[i], .pid = job.pids[i]};
    if (job.steps)
      rank.steps = read_rank_steps(job.steps, local).value_or(RankSteps{});
    if (rank.steps.last && *rank.steps.last <= now)
      rank.seconds_since_step =
          std::chrono::duration<double>(now - *rank.steps.last).count();
    status.ranks.push_back(rank);
  }
  std::ranges::sort(status.ranks, {}, &RankStatus::rank);
  status.stragglers = stragglers_of(status.ranks);
  return status;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string step_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

std::string to_text(const Straggler& straggler, const JobStatus& job) {
  const std::string part(straggler.part ? name_of(*straggler.part) : "");
  switch (straggler.kind) {
    case Straggler::Kind::kSlow:
      return fmt::format(
          "rank {} is slow{}: {} per step without waiting, the other ranks "
          "{}{}",
          straggler.rank, part.empty() ? "" : " in " + part,
          step_text(straggler.seconds), step_text(straggler.others),
          straggler.others > 0
              ? fmt::format(" ({:.1f} times)",
                            straggler.seconds / straggler.others)
              : "");
    case Straggler::Kind::kStalled:
      return fmt::format("rank {} holds up the others: {}no step for {}",
                         straggler.rank,
                         part.empty() ? "" : "in " + part + ", ",
                         duration_text(straggler.seconds));
    case Straggler::Kind::kAllWait:
      return fmt::format(
          "all ranks of this host wait for other ranks, no step for {}{}; "
          "next: "
          "kill -USR1 {} makes records for `lockstep blame`",
          duration_text(straggler.seconds),
          straggler.rank < 0
              ? ""
              : fmt::format("; rank {} has ended fewer steps than the others "
                            "and may be stopped",
                            straggler.rank),
          job.launcher);
  }
  return "";
}

std::string heading_of(const JobStatus& job) {
  constexpr std::size_t kMostBytes = 200;
  std::string command;
  for (const std::string& word : job.command)
    command += (command.empty() ? "" : " ") + word;
  if (command.size() > kMostBytes)
    command.replace(kMostBytes, command.npos, "...");
  std::string text = fmt::format(
      "job {}  {}\n  user {}, {} of {} rank{}, for {}", job.launcher,
      safe_for_terminal(command), job.user, job.ranks.size(), job.world_size,
      job.world_size == 1 ? "" : "s", duration_text(job.seconds));
  if (job.run_id != "none" && !job.run_id.empty())
    text += fmt::format(", id {}", safe_for_terminal(job.run_id));
  if (job.restarts > 0) text += fmt::format(", restart {}", job.restarts);
  return text + "\n";
}

std::string to_text(const RankStatus& rank) {
  const auto percent = [&](double StepTimes::*part) -> std::string {
    if (!rank.steps.window) return "-";
    const StepTimes times = times_of(*rank.steps.window);
    if (times.total <= 0) return "-";
    return fmt::format("{:.0f} %", 100 * times.*part / times.total);
  };
  const auto samples = samples_per_second(rank.steps);
  return fmt::format(
      "  {:>4} {:>8} {:>9} {:>10} {:>10} {:>6} {:>8} {:>8}  {}\n", rank.rank,
      rank.pid, rank.steps.last ? fmt::to_string(rank.steps.steps) : "-",
      samples ? fmt::format("{:.1f}", *samples) : "-",
      rank.seconds_since_step
          ? fmt::format("{:.1f} s", *rank.seconds_since_step)
          : "-",
      percent(&StepTimes::data), percent(&StepTimes::compute),
      percent(&StepTimes::waiting), activity(rank.steps));
}

JobJson to_object(const RankStatus& rank) {
  const auto samples = samples_per_second(rank.steps);
  JobJson object{
      {"rank", rank.rank},
      {"pid", rank.pid},
      {"steps", rank.steps.steps},
      {"samples_per_second", samples ? JobJson(*samples) : JobJson()},
      {"seconds_since_step",
       rank.seconds_since_step ? JobJson(*rank.seconds_since_step) : JobJson()},
      {"activity", activity(rank.steps)},
      {"step_seconds", JobJson()}};
  if (!rank.steps.window) return object;
  const StepTimes times = times_of(*rank.steps.window);
  object["step_seconds"] = {{"total", times.total},
                            {"data", times.data},
                            {"compute", times.compute},
                            {"waiting", times.waiting}};
  return object;
}

JobJson to_object(const Straggler& straggler, const JobStatus& job) {
  const bool slow = straggler.kind == Straggler::Kind::kSlow;
  return {
      {"rank", straggler.rank < 0 ? JobJson() : JobJson(straggler.rank)},
      {"phase", straggler.part ? JobJson(name_of(*straggler.part)) : JobJson()},
      {"seconds", straggler.seconds},
      {"seconds_of_others", slow ? JobJson(straggler.others) : JobJson()},
      {"text", to_text(straggler, job)}};
}

}  // namespace

std::string_view name_of(StepPart part) { return name_of(kStepParts, part); }

JobStatuses look_at_jobs(const EnvironmentLookup& lookup, JobsOf whose) {
  JobList list = list_jobs(lookup, whose);
  JobStatuses statuses{.problems = std::move(list.problems)};
  for (const ListedJob& job : list.jobs)
    statuses.jobs.push_back(status_of(job));
  return statuses;
}

JobStatuses look_at_job(const EnvironmentLookup& lookup, pid_t launcher) {
  JobStatuses all = look_at_jobs(lookup, JobsOf::kAllUsers);
  JobStatuses found;
  for (JobStatus& job : all.jobs)
    if (job.launcher == launcher) found.jobs.push_back(std::move(job));
  if (!found.jobs.empty()) return found;
  std::string text =
      fmt::format("no job {} runs on this host{}", launcher,
                  all.problems.empty() ? "" : ", as far as this user can see");
  for (const std::string& problem : all.problems)
    text += "\n  likely:  " + safe_for_terminal(problem);
  throw InvalidArgument(
      text +
      "\n  next:    lockstep status lists your jobs, and with --all those of "
      "other users too; a job's number is that of its launcher");
}

std::string to_text(const JobStatuses& jobs) {
  std::string text;
  for (const JobStatus& job : jobs.jobs) {
    text += heading_of(job);
    text +=
        fmt::format("  {:>4} {:>8} {:>9} {:>10} {:>10} {:>6} {:>8} {:>8}  {}\n",
                    "rank", "pid", "steps", "samples/s", "last step", "data",
                    "compute", "waiting", "now");
    for (const RankStatus& rank : job.ranks) text += to_text(rank);
    for (const Straggler& straggler : job.stragglers)
      text += fmt::format("  {}\n", to_text(straggler, job));
  }
  for (const std::string& problem : jobs.problems)
    text += safe_for_terminal(problem) + "\n";
  if (text.empty()) text = "no job of `lockstep run` or `lockstep train`\n";
  return text;
}

JobJson to_json_list(const std::vector<JobStatus>& jobs) {
  JobJson list = JobJson::array();
  for (const JobStatus& job : jobs) {
    JobJson object{{"launcher", job.launcher},      {"user", job.user},
                   {"command", job.command},        {"run_id", job.run_id},
                   {"world_size", job.world_size},  {"restarts", job.restarts},
                   {"seconds", job.seconds},        {"ranks", JobJson::array()},
                   {"stragglers", JobJson::array()}};
    for (const RankStatus& rank : job.ranks)
      object["ranks"].push_back(to_object(rank));
    for (const Straggler& straggler : job.stragglers)
      object["stragglers"].push_back(to_object(straggler, job));
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace lockstep
