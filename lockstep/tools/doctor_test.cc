#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/tools/doctor_command.h"
#include "lockstep/tools/doctor_findings.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::optional<std::string> nothing_set(const std::string&) {
  return std::nullopt;
}

TEST(Doctor, FindsThatTrainingWorksHere) {
  const DoctorReport report = examine(nothing_set);
  EXPECT_TRUE(report.can_train()) << to_text(report);
  EXPECT_EQ(try_shared_memory().health, Health::kGood);
  for (const Finding& finding : report.findings) {
    EXPECT_FALSE(finding.topic.empty());
    EXPECT_FALSE(finding.text.empty()) << finding.topic;
  }
}

TEST(Doctor, SaysWhatToDoWhereSomethingIsMissing) {
  const DoctorReport report{{{.topic = "a", .text = "fine"},
                             {.topic = "heap",
                              .health = Health::kLimited,
                              .text = "small",
                              .next = "make it large"}}};
  EXPECT_TRUE(report.can_train());
  EXPECT_THAT(to_text(report), HasSubstr("  ok  a     fine\n"
                                         "  --  heap  small\n"
                                         "            next: make it large\n"
                                         "Training on this host works.\n"));
  EXPECT_THAT(to_json(report), HasSubstr("\"health\": \"limited\""));
}

TEST(Doctor, FailsWhenSomethingIsBad) {
  const DoctorReport report{
      {{.topic = "shm", .health = Health::kBad, .text = "no memfd"}}};
  EXPECT_FALSE(report.can_train());
  EXPECT_THAT(to_text(report), HasSubstr("  NO  shm  no memfd\n"
                                         "Training on this host does not"));
  EXPECT_THAT(to_json(report), HasSubstr("\"can_train\": false"));
}

TEST(Doctor, NoticesALimitThatForbidsTheHeap) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Finding finding = try_heap(Settings{});
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.next, HasSubstr("ulimit -f"));
}

TEST(Doctor, RefusesAnEnvironmentThatCannotBeRead) {
  EXPECT_THROW(examine([](const std::string& name) {
                 return name == "RANK" ? std::optional<std::string>("two")
                                       : std::nullopt;
               }),
               InvalidArgument);
}

}  // namespace
}  // namespace lockstep
