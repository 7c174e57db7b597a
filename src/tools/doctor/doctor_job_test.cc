#include "src/tools/doctor/doctor_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using testing::AllOf;
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
    const auto offsets = measure_clocks(*group, leaders);
    const auto links = measure_links(*group, leaders);
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
  const auto with_size = [](const char* size) {
    return is_rank_of_job([&](const std::string& name) {
      if (name == "WORLD_SIZE") return std::optional<std::string>(size);
      if (name == "RANK") return std::optional<std::string>("0");
      return std::optional<std::string>();
    });
  };
  EXPECT_TRUE(with_size("2"));
  EXPECT_FALSE(with_size("1"));
}

}  // namespace
}  // namespace lockstep
