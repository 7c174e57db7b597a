#include "src/net/step_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/file_size_limit.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_seed.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A file of steps with its reader's descriptor.
class StepFile {
 public:
  explicit StepFile(int slots) : file_(create_step_memory(path(), slots)) {}

  std::string path() const { return (folder_ / "steps").string(); }
  const FileDescriptor& descriptor() const { return file_; }
  RankSteps read(int slot) const {
    return read_rank_steps(file_, slot).value();
  }

 private:
  TestDirectory folder_;
  FileDescriptor file_;
};

TEST(StepMemory, HasNoStepsBeforeTheFirst) {
  const StepFile file(2);
  const RankSteps before = file.read(0);
  EXPECT_EQ(before.steps, 0u);
  EXPECT_FALSE(before.last || before.window || before.waits);
  StepWriter writer(file.path(), 0);
  writer.step_done(8, 0ns);
  EXPECT_EQ(file.read(0).steps, 1u);
  EXPECT_TRUE(file.read(0).last.has_value());
  EXPECT_FALSE(file.read(0).window.has_value());
  EXPECT_EQ(file.read(1).steps, 0u);
}

TEST(StepMemory, TellsWhatHappenedBetweenTheLastSteps) {
  const StepFile file(1);
  StepWriter writer(file.path(), 0);
  for (int step = 1; step <= 100; ++step) {
    writer.step_done(32, step * 5ms);
    const RankSteps seen = file.read(0);
    EXPECT_EQ(seen.steps, static_cast<std::uint64_t>(step));
    if (step < 2) continue;
    const StepWindow window = seen.window.value();
    EXPECT_EQ(window.steps, std::min(step - 1, 14));
    EXPECT_EQ(window.samples, 32u * static_cast<unsigned>(window.steps));
    EXPECT_NEAR(window.waited.count(), 0.005 * window.steps, 1e-9);
    EXPECT_EQ(window.data.count(), 0);
    EXPECT_GT(window.time.count(), 0);
  }
}

TEST(StepMemory, CountsTheTimeFromWantingDataToHavingThem) {
  const StepFile file(1);
  StepWriter writer(file.path(), 0);
  EXPECT_EQ(file.read(0).phase, StepPhase::kUnknown);
  writer.report_by_program();
  writer.step_done(1, 0ns);
  writer.data_wanted(0ns);
  EXPECT_EQ(file.read(0).phase, StepPhase::kData);
  writer.data_ready(0ns);
  EXPECT_EQ(file.read(0).phase, StepPhase::kCompute);
  writer.step_done(1, 0ns);
  const StepWindow window = file.read(0).window.value();
  EXPECT_GT(window.data.count(), 0);
  EXPECT_LE(window.data.count(), window.time.count());
}

// The time between the batches of one step is that of computing, too.
TEST(StepMemory, CountsTheTimeUpToTheFirstBatchOfAStep) {
  const StepFile file(1);
  StepWriter writer(file.path(), 0);
  writer.report_by_program();
  writer.step_done(1, 0ns);
  const auto begin = StepWriter::Clock::now();
  writer.data_wanted(0ns);
  writer.data_ready(0ns);
  const auto first = StepWriter::Clock::now();
  while (StepWriter::Clock::now() - first <= first - begin)
    std::this_thread::yield();
  writer.data_ready(0ns);
  writer.step_done(1, 0ns);
  EXPECT_LE(file.read(0).window.value().data, first - begin);
}

TEST(StepMemory, CountsNoWaitsAsTimeForData) {
  const StepFile file(1);
  StepWriter writer(file.path(), 0);
  writer.step_done(1, 0ns);
  writer.data_wanted(1h);
  writer.data_ready(3h);
  writer.step_done(1, 3h);
  EXPECT_EQ(file.read(0).window.value().data.count(), 0);
}

TEST(StepMemory, TellsTheMedianOfTheSteps) {
  const StepFile file(1);
  StepWriter writer(file.path(), 0);
  for (const auto waited : {0ns, 0ns, 0ns, 0ns}) writer.step_done(1, waited);
  const StepWindow window = file.read(0).window.value();
  EXPECT_GT(window.own_per_step.count(), 0);
  EXPECT_LE(window.own_per_step.count(), window.time.count());
}

TEST(StepMemory, ShowsARankThatWaits) {
  const StepFile file(1);
  StepWriter writer(file.path(), 0);
  writer.enters_wait();
  writer.enters_wait();
  writer.leaves_wait();
  EXPECT_TRUE(file.read(0).waits);
  writer.leaves_wait();
  EXPECT_FALSE(file.read(0).waits);
}

// Entries have equal numbers of samples and milliseconds, which a mixture of
// two entries would not have.
TEST(StepMemory, IsReadWholeWhileTheRankWrites) {
  const StepFile file(1);
  StepWriter writer(file.path(), 0);
  std::atomic<bool> done{false};
  std::thread rank([&] {
    for (int step = 1; !done.load(); ++step) writer.step_done(1, step * 1ms);
  });
  int seen = 0;
  while (seen < 2000) {
    const auto steps = read_rank_steps(file.descriptor(), 0);
    if (!steps || !steps->window) continue;  // the rank was too fast
    ++seen;
    ASSERT_NEAR(steps->window->waited.count(),
                static_cast<double>(steps->window->samples) / 1000, 1e-9);
    ASSERT_EQ(steps->window->samples,
              static_cast<std::uint64_t>(steps->window->steps));
  }
  done = true;
  rank.join();
}

TEST(StepMemory, BeginsAnewWithTheNextWriter) {
  const StepFile file(1);
  for (int job = 0; job < 2; ++job) {
    StepWriter writer(file.path(), 0);
    EXPECT_EQ(file.read(0).steps, 0u);
    writer.step_done(1, 0ns);
  }
  EXPECT_EQ(file.read(0).phase, StepPhase::kUnknown) << "its program has ended";
}

TEST(StepMemory, RefusesOtherFilesAndSlots) {
  const StepFile file(2);
  EXPECT_THROW(StepWriter(file.path(), 2), InvalidArgument);
  EXPECT_THROW(StepWriter(file.path(), -1), InvalidArgument);
  EXPECT_THROW(StepWriter(file.path() + "x", 0), SystemError);
  EXPECT_THROW(create_step_memory(file.path(), 1), SystemError);
  EXPECT_FALSE(read_rank_steps(file.descriptor(), 2).has_value());
  EXPECT_FALSE(read_rank_steps(file.descriptor(), -1).has_value());
  EXPECT_FALSE(read_rank_steps(FileDescriptor(), 0).has_value());
  const TestDirectory folder;
  std::ofstream(folder / "text") << std::string(4096, 'x');
  EXPECT_THROW(StepWriter((folder / "text").string(), 0), InvalidArgument);
}

TEST(StepMemory, IsNotMadeWhereItDoesNotFit) {
  const TestDirectory folder;
  const FileSizeLimit limit(1024);
  EXPECT_THROW(create_step_memory((folder / "steps").string(), 4), SystemError);
  EXPECT_TRUE(folder.entries().empty());
}

TEST(StepMemory, GivesSomeAnswerForAnyBytes) {
  const unsigned seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const StepFile file(1);
    std::vector<std::uint64_t> slot(128);
    for (std::uint64_t& number : slot) number = random() >> (random() % 64);
    ASSERT_EQ(::pwrite(file.descriptor().get(), slot.data(), 1024, 1024), 1024);
    const auto steps = read_rank_steps(file.descriptor(), 0);
    if (!steps || !steps->window) continue;
    EXPECT_GE(steps->window->steps, 1);
    EXPECT_LE(steps->window->steps, 15);
    EXPECT_GE(steps->window->waited.count(), 0);
  }
  // The largest numbers of steps, where a sum could overflow.
  for (std::uint64_t less = 0; less < 40; ++less) {
    const StepFile file(1);
    const std::uint64_t steps = ~std::uint64_t{0} - less;
    ASSERT_EQ(::pwrite(file.descriptor().get(), &steps, 8, 1024), 8);
    EXPECT_FALSE(read_rank_steps(file.descriptor(), 0).has_value());
  }
  for (off_t size = 2048; size >= 0; size -= 7) {
    const StepFile file(1);
    ASSERT_EQ(::ftruncate(file.descriptor().get(), size), 0);
    EXPECT_EQ(read_rank_steps(file.descriptor(), 0).has_value(),
              size >= 1024 + 576);
  }
}

}  // namespace
}  // namespace lockstep
