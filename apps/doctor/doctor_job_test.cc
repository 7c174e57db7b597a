#include "apps/doctor/doctor_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/testing/lookup_in.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

std::vector<HostReport> three_hosts() {
  return {{.host = "a", .rank = 0, .lockstep = "0.1.0", .libtorch = "2.13.0"},
          {.host = "b", .rank = 2, .lockstep = "0.1.0", .libtorch = "2.13.0"},
          {.host = "c", .rank = 4, .lockstep = "0.1.0", .libtorch = "2.13.0"}};
}

TEST(DoctorJob, IsContentWithEqualVersions) {
  EXPECT_EQ(compare_versions(three_hosts()).health, Health::kGood);
}

TEST(DoctorJob, NamesVersionsThatDifferWithTheirHosts) {
  auto hosts = three_hosts();
  hosts[1].libtorch = "2.12.0";
  hosts[2].driver = "580.95.05";
  const Finding finding = compare_versions(hosts);
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_EQ(finding.text,
            "LibTorch: 2.12.0 on b; 2.13.0 on a, c. GPU driver: none on a, b; "
            "580.95.05 on c");
  EXPECT_THAT(finding.next, HasSubstr("install the same versions"));
}

TEST(DoctorJob, NamesAClockThatIsWrong) {
  const auto hosts = three_hosts();
  const std::vector<ClockOffset> near{{1, 0.004, 0.001}, {2, -0.002, 0.001}};
  EXPECT_EQ(judge_clocks(hosts, near).health, Health::kGood);
  const std::vector<ClockOffset> far{{1, 0.004, 0.001}, {2, -7.5, 0.001}};
  const Finding finding = judge_clocks(hosts, far);
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.text, AllOf(HasSubstr("b is 4.0 ms ahead of a"),
                                  HasSubstr("c is 7500.0 ms behind a")));
  EXPECT_THAT(finding.next, HasSubstr("NTP"));
  const std::vector<ClockOffset> unknown{{1, 0.2, 0.3}};
  EXPECT_EQ(judge_clocks(hosts, unknown).health, Health::kGood)
      << "the network is slow, not the clock wrong";
}

TEST(DoctorJob, NamesALinkThatIsSlowerThanTheOthers) {
  const std::vector<LinkSpeed> links{{0, 1, 125e6, 1e-4}, {1, 0, 125e6, 1e-4},
                                     {0, 2, 125e6, 1e-4}, {2, 0, 12.5e6, 1e-4},
                                     {1, 2, 120e6, 1e-4}, {2, 1, 110e6, 1e-4}};
  const auto findings = judge_links(three_hosts(), links);
  ASSERT_EQ(findings.size(), links.size());
  EXPECT_EQ(findings[0].topic, "a to b");
  EXPECT_THAT(findings[0].text, HasSubstr("1 Gbit/s, round trip 0.1 ms"));
  for (std::size_t i = 0; i < findings.size(); ++i)
    EXPECT_EQ(findings[i].health, i == 3 ? Health::kLimited : Health::kGood);
  EXPECT_THAT(findings[3].next, HasSubstr("LOCKSTEP_INTERFACE"));
}

TEST(DoctorJob, MeasuresEachPairOfHosts) {
  run_ranks("shm", 4, [](const std::shared_ptr<ProcessGroup>& group) {
    const std::vector<int> leaders{0, 1, 3};
    std::vector<ClockOffset> offsets;
    measure_clocks(*group, leaders, offsets);
    std::vector<LinkSpeed> links;
    measure_links(*group, leaders, links);
    if (group->rank() != 0) return;
    ASSERT_EQ(offsets.size(), 2u);
    for (const ClockOffset& offset : offsets)  // of one and the same clock
      EXPECT_LE(std::abs(offset.seconds), offset.uncertainty + 1e-5);
    ASSERT_EQ(links.size(), 6u);
    std::set<std::pair<std::size_t, std::size_t>> pairs;
    for (const LinkSpeed& link : links) {
      EXPECT_GT(link.bytes_per_second, 0);
      EXPECT_GT(link.round_trip_seconds, 0);
      pairs.emplace(link.from, link.to);
    }
    EXPECT_EQ(pairs.size(), 6u);
  });
}

constexpr const char* kReportOfB =
    R"({"host": "b", "rank": 1, "lockstep": "0.0.9", "libtorch": "",
        "driver": "", "findings": []})";

// The report of rank 0 on host a, while rank 1 sends `text` as its own, and
// then does `next` and aborts the group.
JobReport examine_beside(
    const std::string& text,
    const std::function<void(ProcessGroup&)>& next = [](ProcessGroup&) {}) {
  JobReport report;
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    if (group->rank() == 0) {
      report =
          examine_between(*group, HostReport{.host = "a", .lockstep = "0.1.0"});
      return;
    }
    all_gather_bytes(*group, std::as_bytes(std::span(text)));
    next(*group);
    group->abort("rank 1 has had enough");
  });
  return report;
}

std::vector<std::string> topics_of(const JobReport& report) {
  std::vector<std::string> topics;
  for (const Finding& finding : report.between) topics.push_back(finding.topic);
  return topics;
}

TEST(DoctorJob, KeepsTheOtherFindingsWhenTheClocksCannotBeCompared) {
  const JobReport report = examine_beside(kReportOfB);
  EXPECT_EQ(report.hosts.size(), 2u);
  EXPECT_THAT(topics_of(report), ElementsAre("group", "versions", "clocks"));
  EXPECT_THAT(report.between[1].text, HasSubstr("0.0.9 on b"));
  EXPECT_EQ(report.between[2].health, Health::kBad);
  EXPECT_THAT(report.between[2].text, HasSubstr("comparing the hosts' clocks"));
  EXPECT_THAT(report.between[2].text, HasSubstr("rank 1 has had enough"));
  EXPECT_FALSE(report.can_train());
}

TEST(DoctorJob, KeepsTheOtherFindingsWhenALinkCannotBeMeasured) {
  const JobReport report = examine_beside(kReportOfB, [](ProcessGroup& group) {
    std::vector<ClockOffset> offsets;
    measure_clocks(group, std::vector<int>{0, 1}, offsets);
  });
  EXPECT_EQ(report.hosts.size(), 2u);
  EXPECT_THAT(topics_of(report),
              ElementsAre("group", "versions", "clocks", "links"));
  EXPECT_EQ(report.between[0].health, Health::kGood);
  EXPECT_EQ(report.between[2].health, Health::kGood);
  EXPECT_EQ(report.between[3].health, Health::kBad);
  EXPECT_THAT(report.between[3].text,
              HasSubstr("measuring the bandwidth of a to b failed: "));
}

TEST(DoctorJob, NamesAVersionWhoseReportItCannotRead) {
  const JobReport report = examine_beside("<report/>");
  ASSERT_EQ(report.hosts.size(), 2u);
  EXPECT_EQ(report.hosts[1].rank, 1);
  EXPECT_THAT(report.between[1].text,
              HasSubstr("another version on the host of rank 1"));
  const HostReport part =
      read_host_report(R"({"host": "b", "lockstep": "0.0.9"})", 3);
  EXPECT_EQ(part.host, "b");
  EXPECT_EQ(part.rank, 3);
  EXPECT_EQ(part.lockstep, "0.0.9");
  ASSERT_EQ(part.report.findings.size(), 1u);
  EXPECT_EQ(part.report.findings[0].health, Health::kLimited);
}

TEST(DoctorJob, SaysWhoIsMissingAndWhy) {
  EXPECT_EQ(reason_of(Timeout("init timed out on rank 0 of 6\n"
                              "  missing: rank 5 on node-b\n"
                              "  likely:  not started\n"
                              "  next:    read the logs")),
            "init timed out on rank 0 of 6; missing: rank 5 on node-b; likely: "
            "not started");
  EXPECT_EQ(reason_of(Timeout("one line")), "one line");
}

TEST(DoctorJob, FailsWhereOneHostOrTheGroupDoes) {
  JobReport report{.hosts = three_hosts(), .between = {{.topic = "group"}}};
  EXPECT_TRUE(report.can_train());
  EXPECT_THAT(to_text(report), HasSubstr("Training on these hosts works.\n"));
  report.between[0].health = Health::kBad;
  EXPECT_FALSE(report.can_train());
  report.between[0].health = Health::kGood;
  report.hosts[1].report.findings = {{.topic = "shm", .health = Health::kBad}};
  EXPECT_FALSE(report.can_train());
  EXPECT_THAT(to_text(report),
              AllOf(HasSubstr("b: lockstep "), HasSubstr("  NO  shm"),
                    HasSubstr("between the ranks\n  ok  group"),
                    HasSubstr("Training on these hosts does not work.\n")));
  const auto object = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(object["can_train"], false);
  EXPECT_EQ(object["hosts"][1]["findings"][0]["health"], "bad");
}

TEST(DoctorJob, IsForTheRanksOfALauncher) {
  EXPECT_TRUE(is_rank_of_job(lookup_in({{"WORLD_SIZE", "2"}, {"RANK", "0"}})));
  EXPECT_FALSE(is_rank_of_job(lookup_in({{"WORLD_SIZE", "1"}, {"RANK", "0"}})));
}

TEST(DoctorJob, SaysForWhomAndHowLongItWaits) {
  std::map<std::string, std::string> pod{{"WORLD_SIZE", "4"}, {"RANK", "3"}};
  EXPECT_THAT(announcement(lookup_in(pod)),
              AllOf(HasSubstr("rank 3 of 4"), HasSubstr("up to 60 s"),
                    HasSubstr("--host-only"), EndsWith("\n")));
  pod["LOCKSTEP_RENDEZVOUS_TIMEOUT"] = "7.5";
  EXPECT_THAT(announcement(lookup_in(pod)), HasSubstr("up to 7.5 s"));
  EXPECT_EQ(rendezvous_time(lookup_in(pod)), std::chrono::milliseconds(7500));
  pod["LOCAL_RANK"] = "1";
  EXPECT_EQ(announcement(lookup_in(pod)), "")
      << "its host's first rank says it";
}

}  // namespace
}  // namespace lockstep
