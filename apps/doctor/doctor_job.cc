#include "apps/doctor/doctor_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/version.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/gpu_inventory.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using HostJson = nlohmann::ordered_json;

// The hosts are examined before.
constexpr std::chrono::seconds kExchangeTime{60};
constexpr const char* kRendezvousVariable = "LOCKSTEP_RENDEZVOUS_TIMEOUT";

// "LibTorch 2.13.0" of "lockstep-train 0.1.0, LibTorch 2.13.0, in /path".
std::string libtorch_of(const DoctorReport& report) {
  for (const Finding& finding : report.findings) {
    if (finding.topic != "LibTorch" || finding.health != Health::kGood)
      continue;
    const std::string text =
        finding.text.substr(0, finding.text.rfind(", in "));
    const std::size_t comma = text.find(", ");
    return comma == text.npos ? text : text.substr(comma + 2);
  }
  return "";
}

// The launcher has bound this rank to its share.
Finding cores_of_rank() {
  return {.topic = "cores",
          .text = fmt::format("{} for this rank, {} on the host",
                              usable_cores(), ::sysconf(_SC_NPROCESSORS_ONLN))};
}

HostReport own_report(const EnvironmentLookup& lookup, int rank) {
  HostReport own{.host = own_host_name(),
                 .rank = rank,
                 .lockstep = std::string(version()),
                 .driver = look_at_gpus().driver,
                 .report = examine(lookup)};
  own.libtorch = libtorch_of(own.report);
  for (Finding& finding : own.report.findings)
    if (finding.topic == "cores") finding = cores_of_rank();
  return own;
}

HostJson to_object(const Finding& finding) {
  return {{"topic", finding.topic},
          {"health", name_of(finding.health)},
          {"text", finding.text},
          {"next", finding.next}};
}

Health health_of(std::string_view name) {
  for (const Health health : {Health::kGood, Health::kLimited})
    if (name == name_of(health)) return health;
  return Health::kBad;
}

HostJson to_object(const HostReport& host) {
  HostJson object{{"host", host.host},         {"rank", host.rank},
                  {"lockstep", host.lockstep}, {"libtorch", host.libtorch},
                  {"driver", host.driver},     {"findings", HostJson::array()}};
  for (const Finding& finding : host.report.findings)
    object["findings"].push_back(to_object(finding));
  return object;
}

// Into what is known already, so that the members before an error remain.
void read_object(const HostJson& object, HostReport& host) {
  object.at("host").get_to(host.host);
  object.at("lockstep").get_to(host.lockstep);
  object.at("libtorch").get_to(host.libtorch);
  object.at("driver").get_to(host.driver);
  for (const HostJson& finding : object.at("findings"))
    host.report.findings.push_back(
        {.topic = finding.at("topic"),
         .health = health_of(finding.at("health").get<std::string>()),
         .text = finding.at("text"),
         .next = finding.at("next")});
}

std::string dumped(const HostJson& object, int indent) {
  return object.dump(indent, ' ', false, HostJson::error_handler_t::replace);
}

// `own`: nothing on ranks that are not the first of their host.
std::vector<HostReport> exchange(ProcessGroup& group,
                                 const std::optional<HostReport>& own) {
  const std::string text = own ? dumped(to_object(*own), -1) : "";
  const std::vector<Bytes> parts = all_gather_bytes(
      group, std::as_bytes(std::span(text)), {.timeout = kExchangeTime});
  std::vector<HostReport> hosts;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].empty()) continue;
    hosts.push_back(read_host_report(
        {reinterpret_cast<const char*>(parts[rank].data()), parts[rank].size()},
        static_cast<int>(rank)));
  }
  return hosts;
}

// The hosts by their value, as "2.13.0 on a, b; 2.12.0 on c"; empty where all
// have the same.
std::string differences(
    std::span<const HostReport> hosts,
    const std::function<std::string(const HostReport&)>& value) {
  std::map<std::string, std::string> by_value;
  for (const HostReport& host : hosts) {
    std::string& names = by_value[value(host)];
    names += (names.empty() ? "" : ", ") + host.host;
  }
  if (by_value.size() <= 1) return "";
  std::string text;
  for (const auto& [version_text, names] : by_value)
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ",
                        version_text.empty() ? "none" : version_text, names);
  return text;
}

Finding group_finding(const ProcessGroup& group, std::size_t hosts) {
  return {.topic = "group",
          .text = fmt::format("{} ranks on {} host{} form it: backend {}",
                              group.size(), hosts, hosts == 1 ? "" : "s",
                              group.backend())};
}

Finding failed_group(const std::exception& error) {
  return {.topic = "group",
          .health = Health::kBad,
          .text = reason_of(error),
          .next =
              "let the hosts reach each other at the addresses of their "
              "network findings, at all TCP ports (a firewall?); "
              "LOCKSTEP_INTERFACE chooses the interface"};
}

Finding failed_measurement(const char* topic, const std::string& what,
                           const std::exception& error) {
  return {.topic = topic,
          .health = Health::kBad,
          .text = fmt::format("{} failed: {}", what, reason_of(error)),
          .next =
              "look for a rank that is stopped or slow, and for a link that "
              "loses packets (an MTU that is too large?)"};
}

// Whether the group still works.
bool examine_clocks(ProcessGroup& group, std::span<const int> leaders,
                    JobReport& report) {
  std::vector<ClockOffset> offsets;
  std::optional<Finding> failure;
  try {
    measure_clocks(group, leaders, offsets);
  } catch (const std::exception& error) {
    failure =
        failed_measurement("clocks", "comparing the hosts' clocks", error);
  }
  if (leaders.size() > 1 && !(failure && offsets.empty()))
    report.between.push_back(judge_clocks(report.hosts, offsets));
  if (failure) report.between.push_back(*failure);
  return !failure;
}

void examine_links(ProcessGroup& group, std::span<const int> leaders,
                   JobReport& report) {
  std::vector<LinkSpeed> links;
  std::optional<Finding> failure;
  try {
    measure_links(group, leaders, links);
  } catch (const std::exception& error) {
    std::string what = "measuring the bandwidth";
    if (!links.empty())
      what += fmt::format(" of {} to {}", report.hosts[links.back().from].host,
                          report.hosts[links.back().to].host);
    failure = failed_measurement("links", what, error);
  }
  std::erase_if(
      links, [](const LinkSpeed& link) { return link.bytes_per_second == 0; });
  for (Finding& finding : judge_links(report.hosts, links))
    report.between.push_back(std::move(finding));
  if (failure) report.between.push_back(*failure);
}

// After the rank's own examination.
std::optional<JobReport> examine_with_others(
    const std::optional<HostReport>& own) {
  init_process_group();
  const auto group = default_group();
  JobReport report = examine_between(*group, own);
  destroy_process_group();
  if (group->rank() != 0) return std::nullopt;
  return report;
}

}  // namespace

bool JobReport::can_train() const {
  return std::ranges::all_of(
             hosts, [](const auto& host) { return host.report.can_train(); }) &&
         DoctorReport{between}.can_train();
}

Finding compare_versions(std::span<const HostReport> hosts) {
  Finding finding{.topic = "versions"};
  const std::vector<std::pair<const char*, std::string>> parts{
      {"Lockstep", differences(hosts, &HostReport::lockstep)},
      {"LibTorch", differences(hosts, &HostReport::libtorch)},
      {"GPU driver", differences(hosts, &HostReport::driver)}};
  for (const auto& [name, text] : parts)
    if (!text.empty())
      finding.text +=
          fmt::format("{}{}: {}", finding.text.empty() ? "" : ". ", name, text);
  if (finding.text.empty()) {
    finding.text =
        "Lockstep, LibTorch and GPU driver are the same on all hosts";
    return finding;
  }
  finding.health = Health::kLimited;
  finding.next =
      "install the same versions on all hosts: ranks of different versions may "
      "not form a group, or compute different bits";
  return finding;
}

Finding judge_clocks(std::span<const HostReport> hosts,
                     std::span<const ClockOffset> offsets) {
  // Records and logs of several hosts are compared by their times.
  constexpr double kLargeSeconds = 0.1;
  Finding finding{.topic = "clocks"};
  for (const ClockOffset& offset : offsets) {
    finding.text +=
        fmt::format("{}{} is {:.1f} ms {} {}, +- {:.1f} ms",
                    finding.text.empty() ? "" : "; ", hosts[offset.host].host,
                    std::abs(offset.seconds) * 1e3,
                    offset.seconds < 0 ? "behind" : "ahead of", hosts[0].host,
                    offset.uncertainty * 1e3);
    if (std::abs(offset.seconds) - offset.uncertainty <= kLargeSeconds)
      continue;
    finding.health = Health::kLimited;
    finding.next =
        "set the hosts' clocks by NTP (chronyd, systemd-timesyncd): the times "
        "in logs and records of different hosts cannot be compared";
  }
  return finding;
}

std::vector<Finding> judge_links(std::span<const HostReport> hosts,
                                 std::span<const LinkSpeed> links) {
  constexpr double kGigabit = 1e9 / 8;
  std::vector<Finding> findings;
  std::vector<double> speeds;
  for (const LinkSpeed& link : links) speeds.push_back(link.bytes_per_second);
  std::ranges::sort(speeds);
  for (const LinkSpeed& link : links) {
    const double gigabits = link.bytes_per_second / kGigabit;
    Finding finding{
        .topic =
            fmt::format("{} to {}", hosts[link.from].host, hosts[link.to].host),
        .text = fmt::format("{:.2g} Gbit/s, round trip {:.2g} ms", gigabits,
                            link.round_trip_seconds * 1e3)};
    const double median = speeds[speeds.size() / 2];
    if (link.bytes_per_second < median / 2) {
      finding.health = Health::kLimited;
      finding.next = fmt::format(
          "the median of all pairs is {:.2g} Gbit/s: look for another "
          "interface (LOCKSTEP_INTERFACE), a slower link, or other traffic",
          median / kGigabit);
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

bool is_rank_of_job(const EnvironmentLookup& lookup) {
  return Settings::read(lookup).world_size.value_or(1) > 1;
}

std::chrono::duration<double> rendezvous_time(const EnvironmentLookup& lookup) {
  constexpr std::chrono::seconds kDefault{60};
  if (lookup(kRendezvousVariable).value_or("").empty()) return kDefault;
  return Settings::read(lookup).rendezvous_timeout;
}

std::string announcement(const EnvironmentLookup& lookup) {
  const Settings settings = Settings::read(lookup);
  if (settings.local_rank.value_or(0) != 0) return "";
  return fmt::format(
      "lockstep doctor: rank {} of {} (WORLD_SIZE) waits up to {:.3g} s for "
      "the other ranks; --host-only examines this host alone\n",
      settings.rank.value_or(0), settings.world_size.value_or(1),
      rendezvous_time(lookup).count());
}

std::optional<JobReport> examine_job(const EnvironmentLookup& lookup) {
  const Settings settings = Settings::read(lookup);
  const int rank = settings.rank.value_or(0);
  const std::string seconds =
      fmt::format("{}", rendezvous_time(lookup).count());
  ::setenv(kRendezvousVariable, seconds.c_str(), 1);
  std::optional<HostReport> own;
  // Before the group: examining may take a while, and nothing of it needs one.
  if (settings.local_rank.value_or(rank) == 0) own = own_report(lookup, rank);
  try {
    return examine_with_others(own);
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception& error) {
    destroy_process_group();
    // A rank without LOCAL_RANK may be alone on its host.
    if (!own && !settings.local_rank) own = own_report(lookup, rank);
    if (!own) return std::nullopt;
    return JobReport{.hosts = {*std::move(own)},
                     .between = {failed_group(error)}};
  }
}

JobReport examine_between(ProcessGroup& group,
                          const std::optional<HostReport>& own) {
  JobReport report{.hosts = exchange(group, own)};
  std::vector<int> leaders;
  for (const HostReport& host : report.hosts) leaders.push_back(host.rank);
  report.between.push_back(group_finding(group, leaders.size()));
  if (leaders.size() > 1)
    report.between.push_back(compare_versions(report.hosts));
  // An error has aborted the group.
  if (examine_clocks(group, leaders, report))
    examine_links(group, leaders, report);
  return report;
}

HostReport read_host_report(std::string_view text, int rank) {
  HostReport host{.host = fmt::format("the host of rank {}", rank),
                  .rank = rank,
                  .lockstep = "another version"};
  try {
    read_object(HostJson::parse(text), host);
  } catch (const std::exception& error) {
    host.report.findings.push_back(
        {.topic = "report",
         .health = Health::kLimited,
         .text =
             fmt::format("rank 0 cannot read all of it: {}", reason_of(error)),
         .next = "install the same version of Lockstep on all hosts"});
  }
  return host;
}

std::string reason_of(const std::exception& error) {
  std::istringstream lines(error.what());
  std::string reason, line;
  std::getline(lines, reason);
  while (std::getline(lines, line)) {
    line.erase(0, line.find_first_not_of(' '));
    if (!line.starts_with("missing:") && !line.starts_with("likely:")) continue;
    const std::size_t colon = line.find(':');
    const std::size_t value = line.find_first_not_of(' ', colon + 1);
    if (value == line.npos) continue;
    reason +=
        fmt::format("; {} {}", line.substr(0, colon + 1), line.substr(value));
  }
  return reason;
}

std::string to_text(const JobReport& report) {
  std::string text;
  for (const HostReport& host : report.hosts)
    text += fmt::format("{}: {}", host.host, to_text(host.report));
  const std::string between = to_text(DoctorReport{report.between});
  // Without the first and the last line, which are about one host.
  const std::size_t first = between.find('\n') + 1;
  const std::size_t last = between.rfind('\n', between.size() - 2) + 1;
  text +=
      fmt::format("between the ranks\n{}", between.substr(first, last - first));
  return text + (report.can_train()
                     ? "Training on these hosts works.\n"
                     : "Training on these hosts does not work.\n");
}

std::string to_json(const JobReport& report) {
  HostJson object{{"version", version()},
                  {"can_train", report.can_train()},
                  {"hosts", HostJson::array()},
                  {"between", HostJson::array()}};
  for (const HostReport& host : report.hosts)
    object["hosts"].push_back(to_object(host));
  for (const Finding& finding : report.between)
    object["between"].push_back(to_object(finding));
  return dumped(object, 1) + "\n";
}

}  // namespace lockstep
