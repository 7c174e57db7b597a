#include "apps/options/training_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using testing::StartsWith;
using testing::UnorderedElementsAre;

// What ranks compare, by the flags.
std::map<std::string, std::string> recorded(TrainerOptions options) {
  std::map<std::string, std::string> values;
  for (const TrainingFlag& flag : training_flags(options))
    values[long_name(flag)] = recorded_value(flag);
  return values;
}

TEST(TrainingFlags, HaveEachANameAHelpAndAGroup) {
  TrainerOptions options;
  std::set<std::string> names;
  for (const TrainingFlag& flag : training_flags(options)) {
    EXPECT_THAT(long_name(flag), StartsWith("--"));
    EXPECT_TRUE(names.insert(long_name(flag)).second) << flag.name;
    EXPECT_FALSE(flag.help.empty()) << flag.name;
    EXPECT_NE(flag.help.back(), '.') << flag.name;
    EXPECT_NE(flag.group, nullptr) << flag.name;
  }
}

// Other text would end in a conversion that says less, or in a name that only
// the ranks find unknown.
TEST(TrainingFlags, CheckEveryNumberAndEveryName) {
  TrainerOptions options;
  std::vector<std::string> unchecked;
  for (const TrainingFlag& flag : training_flags(options))
    if (!flag.check && !std::holds_alternative<bool*>(flag.target))
      unchecked.push_back(long_name(flag));
  EXPECT_THAT(unchecked,
              UnorderedElementsAre("--output", "--augment", "--weights",
                                   "--checkpoint-dir", "--resume"));
}

TEST(TrainingFlags, AreRecordedAsTheyAreGiven) {
  const auto usual = recorded({});
  EXPECT_EQ(usual.at("--epochs"), "5");
  EXPECT_EQ(usual.at("--lr"), "0.05");
  EXPECT_EQ(usual.at("--clip-norm"), "not given");
  EXPECT_EQ(usual.at("--checkpoint-every"), "one epoch");
  EXPECT_EQ(usual.at("--logical-shards"), "0");
  EXPECT_EQ(usual.at("--sharded"), "off");
  EXPECT_EQ(usual.at("--augment"), "off");
  EXPECT_EQ(usual.at("--show-values"), "");
  const auto other = recorded({.model = "mlp",
                               .hidden = {64, 32},
                               .clip_norm = 0.1,
                               .sharded = true,
                               .checks = {.show = {"a.weight", "b"}},
                               .augment = "standard"});
  EXPECT_EQ(other.at("--hidden"), "64,32");
  EXPECT_EQ(other.at("--clip-norm"), "0.1");
  EXPECT_EQ(other.at("--sharded"), "on");
  EXPECT_EQ(other.at("--show-values"), "a.weight,b");
  EXPECT_EQ(other.at("--augment"), "on");
}

// Only rank 0 uses them, and ranks on other hosts may have other ones.
TEST(TrainingFlags, OfPathsRecordOnlyWhetherThereIsOne) {
  const auto values = recorded({.weights = "/some/weights",
                                .output = "",
                                .checkpoint_dir = "runs",
                                .resume = "auto"});
  EXPECT_EQ(values.at("--weights"), "given");
  EXPECT_EQ(values.at("--output"), "not given");
  EXPECT_EQ(values.at("--checkpoint-dir"), "given");
  EXPECT_EQ(values.at("--resume"), "auto");
  EXPECT_EQ(recorded({.resume = "runs"}).at("--resume"), "given");
}

TEST(TrainingFlags, RecordNothingThatTheModelOrTheOptimizerIgnores) {
  const auto values = recorded({.model = "cnn", .optimizer = "adam"});
  EXPECT_EQ(values.at("--hidden"), "none");
  EXPECT_EQ(values.at("--momentum"), "none");
  EXPECT_EQ(values.at("--lr"), "0.001");
}

// Another name would make every earlier checkpoint one of another job.
TEST(TrainingFlags, HaveInCheckpointsTheNamesOfEarlierVersions) {
  TrainerOptions options;
  std::map<std::string, std::string> names, in_older;
  for (const TrainingFlag& flag : training_flags(options)) {
    if (!flag.in_checkpoint.empty())
      names[long_name(flag)] = flag.in_checkpoint;
    if (flag.in_older) in_older[long_name(flag)] = *flag.in_older;
  }
  EXPECT_EQ(names, (std::map<std::string, std::string>{
                       {"--model", "model"},
                       {"--hidden", "hidden"},
                       {"--dropout", "dropout"},
                       {"--augment", "augmentation"},
                       {"--seed", "seed"},
                       {"--global-batch-size", "global batch size"},
                       {"--optimizer", "optimizer"},
                       {"--momentum", "momentum"},
                       {"--weight-decay", "weight decay"},
                       {"--logical-shards", "logical shards"},
                       {"--hook", "hook"},
                       {"--sync-bn", "sync-bn"},
                       {"--precision", "precision"}}));
  EXPECT_EQ(in_older,
            (std::map<std::string, std::string>{{"--sync-bn", "off"}}));
}

}  // namespace
}  // namespace lockstep
