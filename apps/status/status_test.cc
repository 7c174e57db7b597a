#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "apps/status/status_command.h"
#include "src/base/testing/lookup_in.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

// One GPU that a trainer uses, and one about which the driver reports little.
HostStatus busy_host() {
  GpuState busy{
      .index = 0,
      .name = "NVIDIA Imaginary",
      .total_bytes = 8 * kGibibyte,
      .used_bytes = 2 * kGibibyte,
      .busy_percent = 87,
      .celsius = 54,
      .processes = {{.pid = 4711, .bytes = kGibibyte}, {.pid = 4712}}};
  return {.host = "node-a",
          .cores = 16,
          .load = 3.25,
          .total_bytes = 64 * kGibibyte,
          .available_bytes = 48 * kGibibyte,
          .gpus = {.driver = "580.95.05",
                   .gpus = {busy, {.index = 1, .name = "Old"}}},
          .programs = {{4711, "lockstep-train"}}};
}

TEST(Status, ShowsCoresMemoryGpusAndWhoUsesThem) {
  EXPECT_EQ(to_text(busy_host()),
            "node-a\n"
            "  cores   16, load 3.2\n"
            "  memory  16.0 of 64.0 GiB used\n"
            "  GPU 0   NVIDIA Imaginary, 2.0 of 8.0 GiB used, 87 % busy, 54 "
            "°C, 2 processes\n"
            "                4711  lockstep-train   1.0 GiB\n"
            "                4712                   memory not known\n"
            "  GPU 1   Old, 0.0 of 0.0 GiB used\n"
            "no job of `lockstep run` or `lockstep train`\n");
}

TEST(Status, SaysToProgramsWhatTheDriverDoesNotSay) {
  const auto object = nlohmann::json::parse(to_json(busy_host()));
  EXPECT_EQ(object["host"], "node-a");
  EXPECT_EQ(object["available_bytes"], 48 * kGibibyte);
  EXPECT_EQ(object["driver"], "580.95.05");
  ASSERT_EQ(object["gpus"].size(), 2u);
  const auto& [busy, old] = std::pair(object["gpus"][0], object["gpus"][1]);
  EXPECT_EQ(busy["busy_percent"], 87);
  EXPECT_EQ(busy["processes"][0]["program"], "lockstep-train");
  EXPECT_TRUE(busy["processes"][1]["bytes"].is_null());
  EXPECT_TRUE(old["celsius"].is_null());
  EXPECT_EQ(object["problem"], "");
  EXPECT_TRUE(object["jobs"].is_array());
}

TEST(Status, SaysWhereMemoryIsNotKnown) {
  EXPECT_THAT(to_text(HostStatus{}), HasSubstr("memory  not known\n"));
  EXPECT_THAT(to_text(HostStatus{.total_bytes = 2 * kGibibyte}),
              HasSubstr("memory  2.0 GiB, use not known\n"));
  EXPECT_TRUE(nlohmann::json::parse(to_json(HostStatus{}))["available_bytes"]
                  .is_null());
}

TEST(Status, SaysWhyThereAreNoGpus) {
  EXPECT_THAT(to_text({.gpus = {.problem = "there is no NVIDIA driver"}}),
              HasSubstr("GPUs    none: there is no NVIDIA driver\n"));
  EXPECT_THAT(to_text({.gpus = {.driver = "580.95.05"}}),
              HasSubstr("GPUs    none\n"));
}

TEST(Status, LooksAtThisHost) {
  const HostStatus status = look_at_host(lookup_in({}));
  EXPECT_FALSE(status.host.empty());
  EXPECT_GE(status.cores, 1);
  EXPECT_GT(status.total_bytes, status.available_bytes);
  EXPECT_GT(status.available_bytes, 0u);
}

}  // namespace
}  // namespace lockstep
