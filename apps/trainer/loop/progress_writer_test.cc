#include "apps/trainer/loop/progress_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
    reader = FileDescriptor(ends[0]);
    writer = FileDescriptor(ends[1]);
    ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  }

  // The records that have arrived.
  std::vector<ProgressRecord> read_all() const {
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t n; (n = ::read(reader.get(), part.data(), part.size())) > 0;)
      text.append(part.data(), static_cast<std::size_t>(n));
    std::vector<ProgressRecord> records;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      records.push_back(*decode_progress(text.substr(at, end - at)));
      at = end + 1;
    }
    return records;
  }

  FileDescriptor reader, writer;
};

TEST(ProgressWriter, LeavesOutStepsThatComeTooSoonAndNothingElse) {
  const Pipe pipe;
  ProgressWriter writer(pipe.writer.get(), {.interval = 1h});
  const EpochRecord epoch{.test_accuracy = 0.5};
  const EndRecord end{};
  writer.write(StepRecord{.step = 1});
  writer.write(StepRecord{.step = 2});
  writer.write(epoch);
  writer.write(StepRecord{.step = 3});
  writer.write(end);
  const std::vector<ProgressRecord> expected{StepRecord{.step = 1}, epoch, end};
  EXPECT_EQ(pipe.read_all(), expected);
}

TEST(ProgressWriter, DoesNotWaitForAReaderThatDoesNotRead) {
  const Pipe pipe;
  ProgressWriter writer(pipe.writer.get(), {.interval = 0ms, .timeout = 1ms});
  // More than a pipe of the default size holds.
  for (int step = 0; step < 2000; ++step)
    writer.write(StepRecord{.step = step});
  writer.write(EpochRecord{});
  const auto records = pipe.read_all();
  EXPECT_GT(records.size(), 100u);
  EXPECT_LT(records.size(), 2000u);
  writer.write(EndRecord{});
  EXPECT_EQ(pipe.read_all().size(), 1u) << "it has given the reader up";
}

TEST(ProgressWriter, GoesOnWhenTheReaderIsGone) {
  Pipe pipe;
  auto* const handler = std::signal(SIGPIPE, SIG_IGN);
  pipe.reader.reset();
  ProgressWriter writer(pipe.writer.get());
  ::testing::internal::CaptureStderr();
  writer.write(EpochRecord{});
  writer.write(EndRecord{});
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("without progress reports"), std::string::npos);
  std::signal(SIGPIPE, handler);
}

}  // namespace
}  // namespace lockstep
