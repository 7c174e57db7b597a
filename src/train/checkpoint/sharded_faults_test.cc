// Checkpoints in shards whose disk is full, whose folder vanishes, or whose
// parts contradict each other; and a process that forks while one is written.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/checkpoint.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/file_size_limit.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/testing/run_ranks.h"
#include "src/train/checkpoint/checkpoint_checksum.h"
#include "src/train/checkpoint/checkpoint_set.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Ranks = std::shared_ptr<ProcessGroup>;

CheckpointFolder shards_in(const fs::path& path, const Ranks& group,
                           int keep = 9) {
  return CheckpointFolder(
      path,
      {.keep = keep, .format = CheckpointFormat::kSharded, .group = group});
}

TEST(ShardsOnAFullDisk, LeaveTheEarlierOnesAndTellEveryRank) {
  const TestDirectory directory;
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "512k");
  run_ranks("shm", 2, [&](const Ranks& group) {
    CheckpointFolder folder = shards_in(directory.path(), group);
    std::int64_t step = 0;
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr(),
                              .counters = {{"step", &step}},
                              .own = {{"own", at::zeros({1 << 14})}}};
    const std::string text = error_text<Error>([&] {
      for (; step < 9; ++step) folder.save(state, step);
      folder.finish();
    });
    // A writing thread failed; save() says so on the next step.
    EXPECT_THAT(text, AllOf(HasSubstr("No space left on device"),
                            HasSubstr("shard-0000"),
                            AnyOf(HasSubstr("writing a checkpoint failed on "
                                            "rank"),
                                  HasSubstr("cannot write \""))));
    const std::int64_t failed = step - 1;
    EXPECT_GT(failed, 1);
    ASSERT_TRUE(folder.resume(state));  // the group still works
    EXPECT_EQ(step, failed - 1);
  });
  for (const auto& name : directory.entries())
    EXPECT_FALSE(name.ends_with(".tmp")) << name;
}

// The only checkpoint stays until the next one is complete.
TEST(ShardsThatCannotBeWritten, AreAnErrorAtTheEndAndLeaveTheCheckpointBefore) {
  const TestDirectory directory;
  const SigxfszIgnored no_signal;
  std::optional<FileSizeLimit> limit;
  run_ranks("shm", 2, [&](const Ranks& group) {
    CheckpointFolder folder = shards_in(directory.path(), group, 1);
    std::int64_t step = 1;
    const TrainingState state{.model = torch::nn::Linear(2000, 1000).ptr(),
                              .counters = {{"step", &step}}};
    folder.save(state, 1);
    folder.finish();
    group->barrier().wait();
    if (group->rank() == 0) limit.emplace(std::size_t{3} << 20);
    group->barrier().wait();
    step = 2;
    folder.save(state, 2);
    EXPECT_THAT(error_text<Error>([&] { folder.finish(); }),
                AllOf(HasSubstr("shard-0000"), HasSubstr("File too large")));
    group->barrier().wait();
    if (group->rank() == 0) limit.reset();
    EXPECT_EQ(folder.resume(state), directory / "checkpoint-000001");
    EXPECT_EQ(step, 1);
  });
  EXPECT_EQ(directory.entries().size(), 2u);  // with the lock
}

TEST(ShardsThatAreNotYetWritten, MakeTheNextSaveWaitWhichIsCounted) {
  const TestDirectory directory;
  run_ranks("shm", 1, [&](const Ranks& group) {
    const TrainingState state{.model = torch::nn::Linear(2000, 1000).ptr()};
    CheckpointFolder folder = shards_in(directory.path(), group, 1);
    EXPECT_EQ(folder.waits().count, 0);
    for (int step = 0; folder.waits().count == 0; ++step)
      folder.save(state, step);
    EXPECT_EQ(folder.waits().count, 1);
    EXPECT_GT(folder.waits().time.count(), 0);
    folder.finish();
    EXPECT_EQ(folder.waits().count, 1);
  });
}

TEST(ShardsInAFolderOfAnotherRun, AreRefusedOnEveryRank) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Ranks& group) {
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
    CheckpointFolder first = shards_in(directory.path(), group);
    first.save(state, 1);
    CheckpointFolder second = shards_in(directory.path(), group);
    EXPECT_THAT(error_text<Error>([&] { second.save(state, 2); }),
                HasSubstr(directory.path().string()));
    first.save(state, 3);
    first.finish();
    group->barrier().wait();
    EXPECT_EQ(first.files().size(), 2u);
    group->barrier().wait();
  });
}

// The child has none of the parent's threads.
TEST(AForkedChild, DoesNotWaitForTheShards) {
  const TestDirectory directory;
  run_ranks("shm", 1, [&](const Ranks& group) {
    const TrainingState state{.model = torch::nn::Linear(1000, 1000).ptr()};
    auto folder =
        std::make_unique<CheckpointFolder>(shards_in(directory.path(), group));
    folder->save(state, 1);
    const pid_t child = ::fork();
    if (child == 0) {
      folder.reset();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    folder->finish();
    folder.reset();
    EXPECT_TRUE(CheckpointSet::is_at(directory / "checkpoint-000001"));
  });
}

TEST(TheEndOfAFolder, WaitsForTheShards) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Ranks& group) {
    const TrainingState state{.model = torch::nn::Linear(1000, 1000).ptr()};
    {
      CheckpointFolder folder = shards_in(directory.path(), group);
      folder.save(state, 1);
      folder = shards_in(directory.path(), group);  // ends the first
    }
    EXPECT_TRUE(CheckpointSet::is_at(directory / "checkpoint-000001"));
  });
}

// A set of one shard whose tensors and parts a test chooses, with all checksums
// right.
void write_set(const fs::path& path, const std::vector<TensorBytes>& tensors,
               const ShardedParts& parts) {
  fs::create_directories(path);
  const fs::path shard = path / shard_name(0, 1);
  write_safetensors(shard, tensors, shard_metadata(parts, 1, 0));
  CheckpointChecksum checksum;
  const auto bytes = read_whole_file(shard);
  checksum.add(bytes);
  const std::string manifest =
      to_text({.step = 1,
               .shards = {{shard_name(0, 1), bytes.size(), checksum.hex()}}});
  const std::vector<std::span<const std::byte>> pieces{
      std::as_bytes(std::span(manifest))};
  replace_file(path / kManifestName, pieces);
}

TEST(PartsOfATensor, MustMakeAWholeOne) {
  const TestDirectory directory;
  const std::vector<float> data(6, 1);
  const TensorBytes six{
      "a", SafetensorsType::kF32, {6}, std::as_bytes(std::span(data))};
  const auto refusal = [&](const ShardedPart& part) {
    write_set(directory / "s", {six}, {{"a", part}});
    return error_text<InvalidArgument>(
        [&] { CheckpointSet(directory / "s").check_shards(); });
  };
  for (const ShardedPart& part : {
           ShardedPart{.shape = {2, 4}},
           ShardedPart{.shape = {6}, .begin = 1},
           ShardedPart{.shape = {12}, .begin = 6},
           ShardedPart{.shape = {0}},
           ShardedPart{.shape = {-2, -3}},
           ShardedPart{.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40}},
           ShardedPart{
               .shape = {0, std::int64_t{1} << 40, std::int64_t{1} << 40}},
       })
    EXPECT_THAT(refusal(part),
                AllOf(HasSubstr("\" is damaged"), HasSubstr("\"a\"")))
        << ::testing::PrintToString(part.shape);
  write_set(directory / "s", {six},
            {{"a", {.shape = {2, 3}, .begin = 0, .order = {1, 0}}}});
  const CheckpointSet set(directory / "s");
  EXPECT_EQ(set.tensors().at("a").shape, (std::vector<std::int64_t>{2, 3}));
}

TEST(AMergedTensor, IsInRows) {
  const TestDirectory directory;
  const std::vector<float> columns{1, 4, 2, 5, 3, 6};
  write_set(
      directory / "s",
      {{"a", SafetensorsType::kF32, {6}, std::as_bytes(std::span(columns))}},
      {{"a", {.shape = {2, 3}, .begin = 0, .order = {1, 0}}}});
  merge_checkpoint(CheckpointSet(directory / "s"), directory / "m.safetensors");
  const SafetensorsFile file(directory / "m.safetensors");
  const std::vector<float> rows{1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(std::ranges::equal(file.view().tensors[0].bytes,
                                 std::as_bytes(std::span(rows))));
  EXPECT_EQ(file.view().tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
}

}  // namespace
}  // namespace lockstep
