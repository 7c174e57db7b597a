#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/testing/parse_train_flags.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ReplicaFlags, AreOffUnlessGiven) {
  const TrainOptions options = parse_train({});
  EXPECT_FALSE(options.sync_batch_norm);
  EXPECT_EQ(options.checks.consistency_steps, 0);
  EXPECT_EQ(options.checks.fingerprint_every, 0);
}

TEST(ReplicaFlags, SayWhatIsChecked) {
  EXPECT_EQ(parse_train({"--check-consistency", "--epochs", "1"})
                .checks.consistency_steps,
            3);
  const TrainOptions options = parse_train(
      {"--check-consistency=7", "--show-values", "fc.bias,conv1.weight",
       "--fingerprint-every", "100", "--sync-bn", "--model", "resnet18"});
  EXPECT_EQ(options.checks.consistency_steps, 7);
  EXPECT_THAT(options.checks.show, ElementsAre("fc.bias", "conv1.weight"));
  EXPECT_EQ(options.checks.fingerprint_every, 100);
  EXPECT_TRUE(options.sync_batch_norm);
}

TEST(ReplicaFlags, RefuseWhatIsNoNumberOfSteps) {
  for (const char* text : {"0", "-1", "two", "1.5"}) {
    const std::string flag = std::string("--check-consistency=") + text;
    EXPECT_THAT(train_error({flag.c_str()}), HasSubstr("--check-consistency"))
        << text;
    EXPECT_THAT(train_error({"--fingerprint-every", text}),
                AllOf(HasSubstr("--fingerprint-every"),
                      HasSubstr("not a whole number from 1")))
        << text;
  }
}

TEST(ReplicaFlags, RefuseSyncBnWhereItHasNoMeaning) {
  EXPECT_EQ(train_error({"--sync-bn"}),
            "--sync-bn is for --model resnet18, resnet34 and resnet50; convnet "
            "has no batch normalization");
  EXPECT_THAT(train_error({"--sync-bn", "--model", "resnet18",
                           "--logical-shards", "2"}),
              HasSubstr("leave out one of the two"));
}

TEST(ReplicaFlags, RefuseValuesOfNoTable) {
  EXPECT_THAT(train_error({"--show-values", "fc.bias"}),
              HasSubstr("--show-values is for --check-consistency"));
}

}  // namespace
}  // namespace lockstep
