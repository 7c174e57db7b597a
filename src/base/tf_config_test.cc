#include "src/base/tf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "src/base/testing/error_text.h"
#include "src/base/testing/lookup_in.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::optional<TfConfig> read(const std::string& config,
                             std::map<std::string, std::string> more = {}) {
  more["TF_CONFIG"] = config;
  return read_tf_config(lookup_in(more));
}

constexpr char kTwo[] =
    R"({"cluster": {"worker": ["a:2222", "b:2223"]},
        "task": {"type": "worker", "index": 1}})";

TEST(TfConfig, SaysWhereAWorkerStands) {
  const auto config = read(kTwo);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->rank, 1);
  EXPECT_EQ(config->world_size, 2);
  EXPECT_EQ(config->first_address, "a:2222");
}

TEST(TfConfig, CountsTheChiefFirst) {
  const std::string cluster =
      R"({"cluster": {"worker": ["a:1", "b:1"], "chief": ["c:1"]}, "task": )";
  const auto chief = read(cluster + R"({"type": "chief", "index": 0}})");
  EXPECT_EQ(chief->rank, 0);
  EXPECT_EQ(chief->world_size, 3);
  EXPECT_EQ(chief->first_address, "c:1");
  EXPECT_EQ(read(cluster + R"({"type": "worker", "index": "1"}})")->rank, 2);
}

TEST(TfConfig, IsNothingWhereItIsNotSetOrNamesNoCluster) {
  EXPECT_FALSE(read_tf_config(lookup_in({})));
  EXPECT_FALSE(read(""));
  EXPECT_FALSE(read("{}"));
  EXPECT_FALSE(read(R"({"cluster": {}})"));
}

std::string refusal(const std::string& config,
                    const std::map<std::string, std::string>& more = {}) {
  return error_text([&] { read(config, more); });
}

std::string with_workers(const std::string& workers) {
  return R"({"cluster": {"worker": )" + workers +
         R"(}, "task": {"type": "worker", "index": 0}})";
}

TEST(TfConfig, IsRefusedWhereItIsNotOfItsShape) {
  EXPECT_THAT(refusal("worker 1"), HasSubstr("not a JSON object: worker 1"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"cluster": 3})"), HasSubstr("expected an object"));
  EXPECT_THAT(refusal(with_workers("7")), HasSubstr("expected a list"));
  EXPECT_THAT(refusal(with_workers("[7]")), HasSubstr("expected a string"));
  for (const char* address :
       {"a", "a:", ":1", "a:b", "a:0", "a:65536", "a:123456789012345678901"})
    EXPECT_THAT(refusal(with_workers("[\"" + std::string(address) + "\"]")),
                HasSubstr("is not HOST:PORT"))
        << address;
  const std::string cluster = R"({"cluster": {"worker": ["a:1"]})";
  EXPECT_THAT(refusal(cluster + "}"), HasSubstr("which worker"));
  EXPECT_THAT(refusal(cluster + R"(, "task": {"type": "worker"}})"),
              HasSubstr("which worker"));
  EXPECT_THAT(
      refusal(cluster + R"(, "task": {"type": "worker", "index": "x"}})"),
      HasSubstr("is not a number"));
  for (const char* index : {"-1", "1", "99999999999"})
    EXPECT_THAT(refusal(cluster + R"(, "task": {"type": "worker", "index": )" +
                        index + "}}"),
                HasSubstr("the cluster names 1 of them"));
  EXPECT_THAT(refusal(cluster + R"(, "task": {"type": "chief", "index": 0}})"),
              HasSubstr("the cluster names 0 of them"));
  EXPECT_THAT(
      refusal(cluster + R"(, "task": {"type": "evaluator", "index": 0}})"),
      HasSubstr("does not train"));
  EXPECT_THAT(refusal(R"({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}})"),
              HasSubstr("parameter servers"));
}

TEST(TfConfig, IsRefusedWhereALauncherSaysOtherwise) {
  EXPECT_THAT(
      refusal(kTwo, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
      HasSubstr("it makes the rank 1, but torchrun or lockstep run says 0"));
  EXPECT_THAT(
      refusal(kTwo, {{"WORLD_SIZE", "3"}}),
      HasSubstr(
          "it makes the world size 2, but torchrun or lockstep run says 3"));
  EXPECT_TRUE(read(kTwo, {{"RANK", "1"}, {"WORLD_SIZE", "2"}}));
}

}  // namespace
}  // namespace lockstep
