#include "src/tools/doctor/doctor_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "src/base/version.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/gpu_inventory.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using HostJson = nlohmann::ordered_json;

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

HostReport from_object(const HostJson& object) {
  HostReport host{.host = object.at("host"),
                  .rank = object.at("rank"),
                  .lockstep = object.at("lockstep"),
                  .libtorch = object.at("libtorch"),
                  .driver = object.at("driver")};
  for (const HostJson& finding : object.at("findings"))
    host.report.findings.push_back(
        {.topic = finding.at("topic"),
         .health = health_of(finding.at("health").get<std::string>()),
         .text = finding.at("text"),
         .next = finding.at("next")});
  return host;
}

std::string dumped(const HostJson& object, int indent) {
  return object.dump(indent, ' ', false, HostJson::error_handler_t::replace);
}

// `own`: nothing on ranks that are not the first of their host.
std::vector<HostReport> exchange(ProcessGroup& group,
                                 const std::optional<HostReport>& own) {
  const std::string text = own ? dumped(to_object(*own), -1) : "";
  std::vector<HostReport> hosts;
  for (const Bytes& part :
       all_gather_bytes(group, std::as_bytes(std::span(text)))) {
    if (part.empty()) continue;
    const auto* const begin = reinterpret_cast<const char*>(part.data());
    hosts.push_back(from_object(HostJson::parse(begin, begin + part.size())));
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

std::string reason_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
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
          .text = reason_line(error),
          .next =
              "let the hosts reach each other at the addresses of their "
              "network findings, at all TCP ports (a firewall?); "
              "LOCKSTEP_INTERFACE chooses the interface"};
}

JobReport examine_between(ProcessGroup& group,
                          const std::optional<HostReport>& own) {
  JobReport report{.hosts = exchange(group, own)};
  std::vector<int> leaders;
  for (const HostReport& host : report.hosts) leaders.push_back(host.rank);
  const auto offsets = measure_clocks(group, leaders);
  const auto links = measure_links(group, leaders);
  report.between.push_back(group_finding(group, leaders.size()));
  if (leaders.size() == 1) return report;
  report.between.push_back(compare_versions(report.hosts));
  report.between.push_back(judge_clocks(report.hosts, offsets));
  for (Finding& finding : judge_links(report.hosts, links))
    report.between.push_back(std::move(finding));
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

std::optional<JobReport> examine_job(const EnvironmentLookup& lookup) {
  const Settings settings = Settings::read(lookup);
  const int rank = settings.rank.value_or(0);
  std::optional<HostReport> own;
  // Before the group: examining may take a while, and nothing of it needs one.
  if (settings.local_rank.value_or(rank) == 0) own = own_report(lookup, rank);
  try {
    init_process_group();
    JobReport report = examine_between(*default_group(), own);
    destroy_process_group();
    if (rank != 0) return std::nullopt;
    return report;
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Error& error) {
    if (!own) return std::nullopt;
    return JobReport{.hosts = {*std::move(own)},
                     .between = {failed_group(error)}};
  }
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
