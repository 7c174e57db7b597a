#include "apps/options/training_conflicts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using Change = std::function<void(TrainerOptions&)>;

struct Flag {
  std::string text;
  Change set;
};

Flag strategy(const std::string& name) {
  return {"--strategy " + name,
          [name](TrainerOptions& options) { options.strategy = name; }};
}
Flag hook(const std::string& name) {
  return {"--hook " + name,
          [name](TrainerOptions& options) { options.hook = name; }};
}

const Flag kSharded{"--sharded", [](auto& options) { options.sharded = true; }};
const Flag kShards{"--logical-shards",
                   [](auto& options) { options.logical_shards = 2; }};
const Flag kAccumulate{"--accumulate",
                       [](auto& options) { options.accumulate = 2; }};
const Flag kSyncBn{"--sync-bn",
                   [](auto& options) { options.sync_batch_norm = true; }};
const Flag kTable{"--check-consistency",
                  [](auto& options) { options.checks.consistency_steps = 1; }};
const Flag kFingerprint{"--fingerprint-every", [](auto& options) {
                          options.checks.fingerprint_every = 1;
                        }};
const Flag kGraph{"--cuda-graph",
                  [](auto& options) { options.cuda_graph = true; }};
const Flag kUnused{"--find-unused",
                   [](auto& options) { options.find_unused = true; }};
const Flag kFloat16{"--precision float16",
                    [](auto& options) { options.precision = "float16"; }};
const Flag kSaves{"--checkpoint-dir",
                  [](auto& options) { options.checkpoint_dir = "runs"; }};
const Flag kResumes{"--resume", [](auto& options) { options.resume = "runs"; }};

// The text for both; empty if they go together. Each alone is accepted.
std::string refusal_of(const Flag& one, const Flag& other) {
  TrainerOptions options;
  one.set(options);
  EXPECT_NO_THROW(check_conflicts(options)) << one.text;
  TrainerOptions others;
  other.set(others);
  EXPECT_NO_THROW(check_conflicts(others)) << other.text;
  other.set(options);
  try {
    check_conflicts(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const std::vector<Flag>& all, const Flag& other,
                    const std::string& why) {
  for (const Flag& one : all)
    EXPECT_THAT(refusal_of(one, other),
                AllOf(StartsWith(one.text + " is not for " + other.text + ", "),
                      HasSubstr(why)));
}

TEST(OptionsThatExcludeEachOther, AreGradientsThatAreAveragedTwice) {
  for (const char* name :
       {"horovod", "mirrored", "multi-worker", "central", "data-parallel"})
    expect_refused({kSharded, kShards}, strategy(name),
                   "averages gradients itself: use --strategy ddp");
  expect_refused({hook("fp16")}, kSharded, "leave out one of the two");
  expect_refused({hook("fp16")}, kShards, "averages gradients itself");
}

TEST(OptionsThatExcludeEachOther, AreHooksAndStrategiesWithoutThem) {
  for (const char* name :
       {"mirrored", "multi-worker", "central", "data-parallel"})
    expect_refused({hook("bf16")}, strategy(name),
                   "hooks belong to DistributedDataParallel");
  expect_refused({hook("power-sgd"), hook("post-local-sgd")},
                 strategy("horovod"), "use one of them, or --strategy ddp");
  for (const char* name : {"fp16", "bf16"})
    EXPECT_EQ(refusal_of(hook(name), strategy("horovod")), "");
}

TEST(OptionsThatExcludeEachOther, AreComparisonsAndRanksThatDifferOnPurpose) {
  expect_refused({kTable, kFingerprint, kSyncBn}, strategy("data-parallel"),
                 "use --strategy mirrored");
  expect_refused({kTable, kFingerprint, kSaves, kResumes},
                 hook("post-local-sgd"), "with which ranks ");
}

TEST(OptionsThatExcludeEachOther, AreLogicalShardsAndOtherPartsOfABatch) {
  expect_refused({kSyncBn}, kShards, "bits would depend on the number");
  expect_refused({kAccumulate}, kShards, "use more of them");
}

TEST(OptionsThatExcludeEachOther, AreACapturedPassAndWorkOfTheHost) {
  expect_refused({strategy("horovod"), kSharded, kShards, kAccumulate, kFloat16,
                  hook("power-sgd"), hook("post-local-sgd"), kUnused, kSyncBn,
                  kTable, kFingerprint},
                 kGraph, "without the host");
  for (const char* name : {"fp16", "bf16"})
    EXPECT_EQ(refusal_of(hook(name), kGraph), "");
}

}  // namespace
}  // namespace lockstep
