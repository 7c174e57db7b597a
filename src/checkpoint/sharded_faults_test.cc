// Checkpoints in shards whose disk is full, whose folder vanishes, or whose
// parts contradict each other; and a process that forks while one is written.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/file_size_limit.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/checkpoint_checksum.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/shared_folder.h"
#include "src/comm/testing/run_ranks.h"

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
      folder->finish();
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

// A folder that keeps one checkpoint, with that of step 1.
struct OneSaved {
  OneSaved(const fs::path& path, const Ranks& ranks)
      : group(ranks), folder(shards_in(path, ranks, 1)) {
    folder.save(state(), 1);
    folder.finish();
    group->barrier().wait();
  }

  TrainingState state(torch::optim::Optimizer* optimizer = nullptr) {
    return {
        .model = model, .optimizer = optimizer, .counters = {{"step", &step}}};
  }
  void set_weights(double value) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& tensor : model->parameters()) tensor.fill_(value);
  }

  Ranks group;
  std::shared_ptr<torch::nn::Module> model = torch::nn::Linear(40, 50).ptr();
  std::int64_t step = 1;
  CheckpointFolder folder;
};

TEST(RanksThatPassDifferentSteps, SaveTheStepOfRankZero) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Ranks& group) {
    OneSaved run(directory.path(), group);
    run.step = 7;
    run.folder.save(run.state(), 7 + group->rank());
    run.step = 0;
    EXPECT_EQ(run.folder.resume(run.state()), directory / "checkpoint-000007");
    EXPECT_EQ(run.step, 7);
  });
}

TEST(RanksWhoseModelsDiffer, SaveTheModelOfRankZero) {
  const TestDirectory directory;
  run_ranks("shm", 3, [&](const Ranks& group) {
    OneSaved run(directory.path(), group);
    run.set_weights(1 + group->rank());
    run.folder.save(run.state(), 2);
    run.set_weights(9);
    run.folder.resume(run.state());
    for (const at::Tensor& tensor : run.model->parameters())
      EXPECT_TRUE(tensor.eq(1).all().item<bool>());
  });
}

// A sharded optimizer on the ranks `first` and `first` + 2 of four.
struct HalfOptimizer {
  HalfOptimizer(ProcessGroup& all, const std::vector<at::Tensor>& parameters) {
    for (const int first : {0, 1})
      if (auto mine = new_group(all, std::array{first, first + 2});
          mine->is_member())
        half = std::move(mine);
    optimizer.emplace(parameters, torch::optim::SGDOptions(0.1).momentum(0.9),
                      ZeroRedundancyOptimizerOptions{.group = half});
    for (const at::Tensor& tensor : parameters)
      tensor.mutable_grad() = at::ones_like(tensor);
    optimizer->step();
  }

  Ranks half;
  std::optional<ZeroRedundancyOptimizer> optimizer;
};

TEST(StateThatIsDividedAmongOtherRanks, IsRefused) {
  const TestDirectory directory;
  run_ranks("shm", 4, [&](const Ranks& group) {
    OneSaved run(directory.path(), group);
    HalfOptimizer half(*group, run.model->parameters());
    EXPECT_THAT(error_text<InvalidArgument>(
                    [&] { run.folder.save(run.state(&*half.optimizer), 2); }),
                AllOf(HasSubstr("is divided among 2 ranks, and 4 save"),
                      HasSubstr("CheckpointFolderOptions::group")));
    TrainingState nameless = run.state(&*half.optimizer);
    nameless.model = nullptr;
    EXPECT_THAT(error_text<Error>([&] { run.folder.save(nameless, 2); }),
                AllOf(HasSubstr("the optimizer's state needs the names of its"),
                      HasSubstr("next:    set TrainingState::model")));
    EXPECT_EQ(run.folder.resume(run.state()), directory / "checkpoint-000001");
  });
}

// Ranks 0 and 1 hold the same half of the state.
TEST(ShardsThatMakeNoWhole, AreNotSealedAndKeepTheCheckpointBefore) {
  const TestDirectory directory;
  run_ranks("shm", 4, [&](const Ranks& group) {
    const Ranks pair = new_group(*group, std::array{0, 1});
    torch::nn::Linear model(40, 50);
    HalfOptimizer half(*group, model->parameters());
    if (pair->is_member()) {
      OneSaved run(directory.path(), pair);
      run.model = model.ptr();
      run.folder.save(run.state(&*half.optimizer), 2);
      EXPECT_THAT(error_text<Error>([&] { run.folder.finish(); }),
                  HasSubstr("do not make a whole tensor"));
      EXPECT_TRUE(CheckpointSet::is_at(directory / "checkpoint-000001"));
    }
    group->barrier().wait();
  });
  EXPECT_EQ(directory.entries().size(), 2u);  // with the lock
}

TEST(ATextThatIsNotUtf8, IsRefusedByTheSave) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Ranks& group) {
    OneSaved run(directory.path(), group);
    TrainingState state = run.state();
    state.job["data"] = "\xff";
    EXPECT_THAT(error_text<Error>([&] { run.folder.save(state, 2); }),
                HasSubstr("\"lockstep.job.data\" to save with tensors is not "
                          "UTF-8"));
    run.folder.save(run.state(), 2);
  });
}

// A set that resume() found damaged is deleted before complete ones, also where
// this object wrote it.
TEST(ADamagedSet, IsDeletedBeforeTheCompleteOneThatIsOlder) {
  const TestDirectory directory;
  run_ranks("shm", 1, [&](const Ranks& group) {
    CheckpointFolder folder = shards_in(directory.path(), group, 2);
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
    folder.save(state, 4);
    folder.save(state, 5);
    folder.finish();
    fs::resize_file(directory / "checkpoint-000005" / shard_name(0, 1), 9);
    EXPECT_EQ(folder.resume(state), directory / "checkpoint-000004");
    folder.check_step(4);
    folder.save(state, 6);
    folder.finish();
    EXPECT_EQ(folder.files(),
              (std::vector<fs::path>{directory / "checkpoint-000004",
                                     directory / "checkpoint-000006"}));
  });
}

TEST(ABufferWhoseElementsShareMemory, IsSavedAndRestored) {
  const TestDirectory directory;
  run_ranks("shm", 1, [&](const Ranks& group) {
    torch::nn::Linear model(2, 2);
    const at::Tensor shared = at::ones({3, 1});
    model->register_buffer("z", shared.expand({3, 4}));
    std::int64_t step = 1;
    const TrainingState state{.model = model.ptr(),
                              .counters = {{"step", &step}}};
    CheckpointFolder folder = shards_in(directory.path(), group);
    folder.save(state, 1);
    folder.finish();
    const at::Tensor before = model->weight.detach().clone();
    {
      const at::NoGradGuard no_grad;
      model->weight.add_(1);
      shared.fill_(2);
    }
    EXPECT_EQ(folder.resume(state), directory / "checkpoint-000001");
    EXPECT_TRUE(model->weight.equal(before));
    EXPECT_TRUE(shared.equal(at::ones({3, 1})));
  });
}

TEST(AFolderOfAnotherProgram, IsNotReplacedByASet) {
  const TestDirectory directory;
  const fs::path theirs = directory / "checkpoint-000002";
  fs::create_directory(theirs);
  const std::string note = "theirs";
  replace_file(theirs / "note", std::array{std::as_bytes(std::span(note))});
  run_ranks("shm", 2, [&](const Ranks& group) {
    OneSaved run(directory.path(), group);
    EXPECT_THAT(error_text<Error>([&] { run.folder.save(run.state(), 2); }),
                AllOf(HasSubstr(theirs.string()),
                      HasSubstr("is not the folder of a checkpoint")));
    run.folder.save(run.state(), 3);
    run.folder.finish();
  });
  EXPECT_TRUE(fs::exists(theirs / "note"));
}

TEST(ASetThatCannotBeRead, IsNotSkipped) {
  const TestDirectory directory;
  const fs::path newest = directory / "checkpoint-000002";
  fs::create_directory(newest);
  fs::create_symlink(kManifestName, newest / kManifestName);  // to itself
  run_ranks("shm", 2, [&](const Ranks& group) {
    CheckpointFolder folder = shards_in(directory.path(), group);
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
    EXPECT_THAT(error_text<Error>([&] { folder.resume(state); }),
                HasSubstr((newest / kManifestName).string()));
    EXPECT_THROW(folder.save(state, 3), Error);
  });
}

// Each rank has a working directory of its own, as two hosts have two disks.
TEST(RanksThatSeeDifferentFolders, AreToldBeforeTheyRestore) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Ranks& group) {
    const fs::path host = directory / std::to_string(group->rank());
    fs::create_directory(host);
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(host.c_str()), 0);
    std::int64_t step = 3 + group->rank();
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr(),
                              .counters = {{"step", &step}}};
    const auto alone = new_group(*group, std::array{0});
    const auto other = new_group(*group, std::array{1});
    CheckpointFolder mine =
        shards_in("runs", alone->is_member() ? alone : other);
    mine.save(state, 5);
    mine.finish();
    CheckpointFolder folder = shards_in("runs", group);
    EXPECT_THAT(error_text<InvalidArgument>([&] { folder.resume(state); }),
                AllOf(HasSubstr("ranks 0 and 1 see different checkpoints at"),
                      HasSubstr("checkpoint-000005")));
    EXPECT_THAT(error_text<Error>([&] { check_shared(*group, "runs"); }),
                HasSubstr("rank 1 does not see \"runs/.checkpoint-probe-"));
    group->barrier().wait();
    if (group->rank() == 1) fs::remove_all("runs");
    EXPECT_THAT(error_text<Error>([&] { folder.resume(state); }),
                HasSubstr("rank 1 does not see the checkpoint"));
    EXPECT_EQ(step, 3 + group->rank());
  });
}

TEST(AFolderThatEndsWithoutFinish, LogsThatItsLastSetWasNotWritten) {
  const TestDirectory directory;
  const SigxfszIgnored no_signal;
  run_ranks("shm", 1, [&](const Ranks& group) {
    auto folder =
        std::make_unique<CheckpointFolder>(shards_in(directory.path(), group));
    const TrainingState state{.model = torch::nn::Linear(2000, 1000).ptr()};
    folder->save(state, 1);
    folder->finish();
    const FileSizeLimit limit(std::size_t{3} << 20);
    ::testing::internal::CaptureStderr();
    folder->save(state, 2);
    folder.reset();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("the last checkpoint was not written"),
                      HasSubstr("File too large")));
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
