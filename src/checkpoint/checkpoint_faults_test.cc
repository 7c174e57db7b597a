// Tests of a folder of checkpoints whose writer is killed, whose disk is full,
// whose user may not write, or in which one rank saves alone.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/checkpoint/training_state.h"
#include "src/comm/testing/run_ranks.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Group = std::shared_ptr<ProcessGroup>;

constexpr int kKeep = 2;

// A checkpoint with all elements `value`.
TensorArchive checkpoint_of(std::int64_t value, std::int64_t elements) {
  return {.tensors = {{"a", at::full({elements}, value, at::kLong)},
                      {"b", at::full({elements / 2}, value, at::kLong)}}};
}

// The value given to checkpoint_of(); -1 for a mixture.
std::int64_t value_of(const std::filesystem::path& path) {
  const TensorArchive archive = parse_archive(read_bytes(path), path.string());
  const std::int64_t value = archive.tensors.at("a")[0].item<std::int64_t>();
  const bool whole = std::ranges::all_of(archive.tensors, [&](auto& item) {
    return item.second.eq(value).all().template item<bool>();
  });
  return whole ? value : -1;
}

bool is_leftover(const std::string& name) { return name.ends_with(".tmp"); }

// Saves value after value, from `first` on, until it is killed; writes each
// saved value to `pipe`.
[[noreturn]] void save_for_ever(CheckpointFolder folder, std::int64_t first,
                                int pipe) {
  for (std::int64_t value = first;; ++value) {
    write_checkpoint(folder, checkpoint_of(value, std::int64_t{1} << 14),
                     value);
    if (::write(pipe, &value, sizeof value) != sizeof value) ::_exit(1);
  }
}

// Kills such a writer after `delay`, and returns the last value that it
// certainly saved; `none` if it saved none.
std::int64_t kill_a_writer(const std::filesystem::path& folder,
                           std::int64_t first, std::chrono::microseconds delay,
                           std::int64_t none) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      save_for_ever(CheckpointFolder(folder, {.keep = kKeep}), first,
                    writing.get());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "the writer: %s\n", error.what());
    }
    ::_exit(1);
  }
  writing = FileDescriptor();
  const FileDescriptor process(
      static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd end{process.get(), POLLIN, 0};
  const timespec wait{0, std::chrono::nanoseconds(delay).count()};
  EXPECT_EQ(::ppoll(&end, 1, &wait, nullptr), 0) << "the writer ended";
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  std::int64_t last = none, value = 0;
  while (::read(reading.get(), &value, sizeof value) == sizeof value)
    last = value;
  return last;
}

TEST(CheckpointsOfAKilledWriter, AreWholeAndNoneThatWasSavedIsLost) {
  at::set_num_threads(1);
  constexpr int kRounds = 200;
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const TestDirectory directory;
  CheckpointFolder folder(directory.path(), {.keep = kKeep});
  std::int64_t last = 0;  // certainly saved
  int in_the_middle = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::chrono::microseconds delay(random() % 30'000);
    last = kill_a_writer(directory.path(), last + 1, delay, last);
    const auto newest = folder.newest();
    if (!newest) {
      EXPECT_EQ(last, 0) << "seed " << seed << ", round " << round;
      continue;
    }
    const std::int64_t value = value_of(*newest);
    ASSERT_GE(value, last) << "seed " << seed << ", round " << round;
    last = value;
    // Older checkpoints are complete too.
    for (const auto& path : folder.files())
      ASSERT_GT(value_of(path), 0) << path << ", seed " << seed;
    const auto names = directory.entries();
    in_the_middle += std::ranges::any_of(names, is_leftover) ? 1 : 0;
  }
  std::printf("seed %u: %d kills while a file was written, %lld were saved\n",
              seed, in_the_middle, static_cast<long long>(last));
  EXPECT_GT(in_the_middle, 0) << "seed " << seed;
  EXPECT_GT(last, 0) << "seed " << seed;
  write_checkpoint(folder, checkpoint_of(last + 1, 1), last + 1);
  // Plus the lock file, which every killed writer had.
  EXPECT_EQ(directory.entries().size(), std::size_t{kKeep} + 1)
      << "seed " << seed;
}

TEST(CheckpointsOnAFullDisk, KeepTheEarlierOnesAndTellEveryRank) {
  const TestDirectory directory;
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "512k");
  std::atomic<int> told = 0;
  run_ranks("shm", 2, [&](const Group& group) {
    CheckpointFolder folder(directory.path(), {.keep = 5, .group = group});
    const at::Tensor own = at::zeros({1 << 14});  // 64 KB per rank
    std::int64_t step = 0;
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr(),
                              .counters = {{"step", &step}},
                              .own = {{"own", own}}};
    const std::string text = error_text<Error>([&] {
      for (; step < 5; ++step) folder.save(state, step);
    });
    EXPECT_THAT(text, HasSubstr("No space left on device"));
    if (group->rank() == 1) {
      EXPECT_THAT(text, HasSubstr("saving a checkpoint failed on rank 0"));
    }
    ++told;
    const std::int64_t failed = step;
    EXPECT_GT(failed, 1);
    ASSERT_TRUE(folder.resume(state));  // the group still works
    EXPECT_EQ(step, failed - 1);
  });
  EXPECT_EQ(told, 2);
  for (const auto& name : directory.entries())
    EXPECT_FALSE(is_leftover(name)) << name;
}

TEST(CheckpointsWhereNothingCanBeWritten, AreAnErrorOnEveryRank) {
  const TestDirectory directory;
  std::ofstream(directory / "file") << "x";
  for (const char* name : {"file", "file/below"})
    run_ranks("shm", 2, [&](const Group& group) {
      CheckpointFolder folder(directory / name, {.group = group});
      const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
      EXPECT_THAT(
          error_text<Error>([&] { folder.save(state, 1); }),
          AllOf(HasSubstr("cannot write \"" + (directory / name).string()),
                AnyOf(HasSubstr("Not a directory"), HasSubstr("File exists"))));
      group->barrier().wait();
    });
}

TEST(CheckpointsThatAreDamaged, AreDeletedBeforeThoseThatAreWhole) {
  const TestDirectory directory;
  run_ranks("shm", 1, [&](const Group& group) {
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
    CheckpointFolder folder(directory.path(), {.keep = 2, .group = group});
    for (int step = 1; step <= 2; ++step) folder.save(state, step);
    std::ofstream(folder.files()[1]) << 1;
    std::ofstream(directory / "checkpoint-000003.safetensors") << 1;
    EXPECT_EQ(folder.resume(state), folder.files()[0]);
    folder.save(state, 2);  // replaces a damaged one
    EXPECT_THAT(directory.entries(),
                UnorderedElementsAre(".lock", "checkpoint-000001.safetensors",
                                     "checkpoint-000002.safetensors"));
    folder.save(state, 5);
    EXPECT_THAT(directory.entries(),
                UnorderedElementsAre(".lock", "checkpoint-000002.safetensors",
                                     "checkpoint-000005.safetensors"));
  });
}

TEST(CheckpointsThatCannotBeRead, AreAnErrorRatherThanPassedOver) {
  const TestDirectory directory;
  CheckpointFolder folder(directory.path());
  write_checkpoint(folder, checkpoint_of(1, 2), 1);
  const std::string newest = "checkpoint-000002.safetensors";
  for (const char* target : {newest.c_str(), "absent"}) {
    std::filesystem::create_symlink(target, directory / newest);
    EXPECT_THAT(error_text<SystemError>([&] { folder.newest(); }),
                AllOf(HasSubstr(newest), AnyOf(HasSubstr("symbolic links"),
                                               HasSubstr("No such file"))));
    std::filesystem::remove(directory / newest);
  }
  EXPECT_EQ(folder.newest(), folder.files().back());
}

// The saving run deletes them while another program evaluates the newest.
TEST(CheckpointsThatAreDeletedMeanwhile, GiveWayToNewerOnes) {
  at::set_num_threads(1);
  const TestDirectory directory;
  CheckpointFolder folder(directory.path(), {.keep = 1});
  write_checkpoint(folder, checkpoint_of(1, 2), 1);
  std::atomic<bool> over = false;
  std::jthread writer([&] {
    for (int value = 2; value < 400; ++value)
      write_checkpoint(folder, checkpoint_of(value, 2), value);
    over = true;
  });
  const CheckpointFolder of_reader(directory.path());
  while (!over)
    EXPECT_THAT(error_text<Error>([&] { EXPECT_TRUE(of_reader.newest()); }),
                "no error");
}

// Neither a rank that saves alone nor the other ranks may wait forever.
TEST(SavingOnOneRankOnly, IsAMismatchWhereTheOthersCallSomethingElse) {
  for (const int saver : {0, 1}) {
    const TestDirectory directory;
    run_ranks("shm", 2, [&](const Group& group) {
      CheckpointFolder folder(directory.path(), {.group = group});
      const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
      std::vector<float> gradient(8);
      const std::string text = error_text<Mismatch>([&] {
        if (group->rank() == saver) return folder.save(state, 1);
        group
            ->all_reduce(view(gradient), ReduceOp::kSum,
                         {.label = "gradients, bucket 0"})
            .wait();
      });
      EXPECT_THAT(text, AllOf(HasSubstr("all_reduce #1 (sum, 8 x float32) at "
                                        "gradients, bucket 0 by rank " +
                                        std::to_string(1 - saver)),
                              HasSubstr("gather #1"),
                              HasSubstr("by rank " + std::to_string(saver))));
    });
    EXPECT_TRUE(directory.entries().empty()) << saver;
  }
}

TEST(SavingOnOneRankOnly, IsATimeoutNamingWhoDoesNotCome) {
  for (const int saver : {0, 1}) {
    const TestDirectory directory;
    std::atomic<bool> over = false;
    run_ranks("shm", 2, [&](const Group& all) {
      const auto group = split(*all, {.color = 0}, {.timeout = 300ms});
      CheckpointFolder folder(directory.path(), {.group = group});
      const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
      if (group->rank() == saver) {
        EXPECT_THAT(
            error_text<Timeout>([&] { folder.save(state, 1); }),
            AllOf(HasSubstr("saving a checkpoint"),
                  HasSubstr("missing: rank " + std::to_string(1 - saver))));
        over = true;
      }
      all->barrier().wait();  // the other waits here meanwhile
      EXPECT_TRUE(over);
    });
    EXPECT_TRUE(directory.entries().empty()) << saver;
  }
}

}  // namespace
}  // namespace lockstep
