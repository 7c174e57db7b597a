#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/run_files.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/file_size_limit.h"
#include "src/base/testing/own_resources.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_seed.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/file_descriptor.h"
#include "src/net/testing/another_user.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Existing = AppendedFile::Existing;

// A child that runs `action` and exits with 0, or with 1 after an exception.
pid_t fork_to(const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 0;
  try {
    action();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = 1;
  }
  ::_exit(code);
}

int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Whether the process has opened the file besides the descriptor `except`.
bool has_open(pid_t process, const fs::path& path, int except) {
  const fs::path folder = "/proc/" + std::to_string(process) + "/fd";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename() != std::to_string(except) &&
        fs::read_symlink(entry.path(), error) == path)
      return true;
  return false;
}

// The line that `writer` appends as its `number`th: up to 1 MiB, most of them
// short, and a pure function of its name.
std::string line_of(std::uint64_t seed, int writer, int number) {
  std::mt19937_64 random(seed + static_cast<std::uint64_t>(writer) * 1000 +
                         static_cast<std::uint64_t>(number));
  const std::size_t most = std::size_t{1} << (random() % 21);
  const char letter = static_cast<char>('a' + random() % 26);
  return std::to_string(writer) + " " + std::to_string(number) + " " +
         std::string(random() % most + 1, letter);
}

// All writers share the object that the parent made. Forked children and
// threads are the cases in which they also share descriptors.
TEST(AppendedFile, HasEachLineOfSeveralProcessesAndThreadsWholeAndOnce) {
  const std::uint64_t seed = test_seed();
  constexpr int kProcesses = 4;
  constexpr int kThreads = 2;
  constexpr int kLines = 30;
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  file.append_line("heading");
  const auto write_all = [&](int process) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, writer = process * kThreads + thread] {
        for (int number = 0; number < kLines; ++number)
          file.append_line(line_of(seed, writer, number), kTimeout);
      });
    for (std::thread& thread : threads) thread.join();
  };
  std::vector<pid_t> children;
  for (int process = 1; process < kProcesses; ++process)
    children.push_back(fork_to([&] { write_all(process); }));
  write_all(0);
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);

  std::multiset<std::string> expected{"heading"};
  for (int writer = 0; writer < kProcesses * kThreads; ++writer)
    for (int number = 0; number < kLines; ++number)
      expected.insert(line_of(seed, writer, number));
  const std::vector<std::string> lines = lines_of(file.path());
  EXPECT_EQ(lines.front(), "heading");
  // EXPECT_EQ would print all of them.
  EXPECT_TRUE(expected ==
              std::multiset<std::string>(lines.begin(), lines.end()))
      << lines.size() << " lines, expected " << expected.size();
}

// The kernel orders whole writes by itself; this is about the lock.
TEST(AppendedFile, NamesTheStoppedProcessThatHoldsTheLock) {
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  const pid_t child = fork_to([&] {
    const FileDescriptor held(::open(file.path().c_str(), O_RDWR));
    if (::flock(held.get(), LOCK_EX) != 0) throw Error("flock failed");
    ::raise(SIGSTOP);
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_THAT(error_text<Timeout>([&] { file.append_line("late", 20ms); }),
              AllOf(StartsWith("appending to \"" + file.path().string()),
                    HasSubstr("process " + std::to_string(child) + " holds"),
                    HasSubstr("kill -CONT " + std::to_string(child))));
  EXPECT_EQ(contents(file.path()), "");
  ::kill(child, SIGCONT);
  file.append_line("in time", kTimeout);
  EXPECT_EQ(contents(file.path()), "in time\n");
  EXPECT_EQ(status_of(child), 0);
}

TEST(AppendedFile, ReleasesTheLockThoughAChildKeepsACopyOfEachDescriptor) {
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  std::array<int, 2> end{};
  ASSERT_EQ(::pipe2(end.data(), O_CLOEXEC), 0);
  std::atomic<bool> done{false};
  std::thread appends([&] {
    while (!done) EXPECT_NO_THROW(file.append_line(std::string(100'000, 'x')));
  });
  std::vector<pid_t> children;
  for (int turn = 0; turn < 50; ++turn) {
    const pid_t child = ::fork();
    if (child == 0) {
      char byte = 0;
      ::close(end[1]);
      ::_exit(::read(end[0], &byte, 1) == 0 ? 0 : 1);  // the parent's close
    }
    children.push_back(child);
  }
  done = true;
  appends.join();
  file.append_line("last");
  EXPECT_EQ(lines_of(file.path()).back(), "last");
  ::close(end[1]);
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
  ::close(end[0]);
}

// Kills a writer until it leaves a part of a line, which depends on the moment.
TEST(AppendedFile, EndsTheLineThatAKilledProcessLeftIncomplete) {
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  const std::string line(std::size_t{8} << 20, 'x');
  const Deadline deadline(kTimeout);
  bool torn = false;
  while (!torn && !deadline.expired()) {
    fs::resize_file(file.path(), 0);
    file.append_line("first");
    const pid_t child = fork_to([&] { file.append_line(line, kTimeout); });
    while (fs::file_size(file.path()) < 100'000) std::this_thread::yield();
    ::kill(child, SIGKILL);
    status_of(child);
    torn = !contents(file.path()).ends_with('\n');
  }
  ASSERT_TRUE(torn) << "no process was killed in the middle of a line";
  file.append_line("last", kTimeout);
  const std::vector<std::string> lines = lines_of(file.path());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines.front(), "first");
  EXPECT_TRUE(line.starts_with(lines[1]));
  EXPECT_LT(lines[1].size(), line.size());
  EXPECT_EQ(lines.back(), "last");
}

TEST(AppendedFile, EndsAnIncompleteLineBeforeLinesOnly) {
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  file.append("brok");
  file.append("en");
  file.append_line("whole");
  file.append_line("with its own end\n");
  file.append_line("");
  file.append_line("two\nlines");
  EXPECT_EQ(contents(file.path()),
            "broken\nwhole\nwith its own end\n\ntwo\nlines\n");
}

TEST(AppendedFile, IsAsBeforeOnAFullDiskAndTakesTheNextRecord) {
  const TestDirectory directory;
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "64k");
  AppendedFile file(directory / "log");
  file.append_line("first");
  EXPECT_THAT(
      error_text<SystemError>(
          [&] { file.append_line(std::string(100'000, 'x')); }),
      AllOf(StartsWith("cannot write \"" + file.path().string()),
            HasSubstr("free space"), HasSubstr("No space left on device")));
  EXPECT_EQ(contents(file.path()), "first\n");
  file.append_line("next");
  EXPECT_EQ(contents(file.path()), "first\nnext\n");
}

// SIGXFSZ would end the program.
TEST(AppendedFile, IsAsBeforeAtTheLimitOnFileSizesAndTakesTheNextRecord) {
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  file.append_line("first");
  {
    const FileSizeLimit limit(10);
    EXPECT_THAT(error_text<SystemError>([&] { file.append_line("too long"); }),
                AllOf(HasSubstr("ulimit -f"), HasSubstr("File too large")));
    EXPECT_EQ(contents(file.path()), "first\n");
    file.append_line("2nd");
  }
  file.append_line("third");
  EXPECT_EQ(contents(file.path()), "first\n2nd\nthird\n");
}

TEST(AppendedFile, RefusesWhatIsNotARegularFileAndWritesNothing) {
  const TestDirectory directory;
  fs::create_directory(directory / "folder");
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  std::ofstream(directory / "target") << "of another user";
  fs::create_symlink(directory / "target", directory / "link");
  fs::create_symlink(directory / "absent", directory / "dangling");
  const std::size_t before = count_descriptors();
  const auto refusal = [&](const char* name) {
    return error_text([&] { AppendedFile(directory / name); });
  };
  EXPECT_THAT(refusal("pipe"), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("is not a regular file"));
  for (const char* name : {"link", "dangling"})
    EXPECT_THAT(refusal(name), HasSubstr("is a symbolic link")) << name;
  EXPECT_THAT(
      error_text<SystemError>([&] { AppendedFile(directory / "folder"); }),
      HasSubstr("Is a directory"));
  EXPECT_THAT(
      error_text<SystemError>([&] { AppendedFile(directory / "absent/log"); }),
      HasSubstr("its folder must exist"));
  EXPECT_EQ(contents(directory / "target"), "of another user");
  EXPECT_FALSE(fs::exists(directory / "absent"));
  EXPECT_EQ(count_descriptors(), before);
}

// A link that appears after the object was made.
TEST(AppendedFile, FollowsNoLinkThatReplacedTheFile) {
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  std::ofstream(directory / "target") << "of another user";
  fs::remove(file.path());
  fs::create_symlink(directory / "target", file.path());
  EXPECT_THAT(error_text([&] { file.append_line("line"); }),
              HasSubstr("is a symbolic link"));
  EXPECT_EQ(contents(directory / "target"), "of another user");
}

TEST(AppendedFile, OfAnotherUserIsAnErrorThatSaysWhatIsMissing) {
  LOCKSTEP_NEEDS_ROOT();
  const TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
  AppendedFile file(directory / "log");
  const AnotherUser user;
  EXPECT_THAT(error_text<SystemError>([&] { file.append_line("line"); }),
              AllOf(HasSubstr("must be able to read and write"),
                    HasSubstr("Permission denied")));
}

TEST(AppendedFile, IsCreatedByOneOfSeveralThatRefuseAnExistingOne) {
  const TestDirectory directory;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i)
    children.push_back(fork_to([&] {
      AppendedFile(directory / "log", Existing::kRefuse).append_line("mine");
    }));
  const auto failed = std::ranges::count_if(
      children, [](pid_t child) { return status_of(child) != 0; });
  EXPECT_EQ(failed, 7);
  EXPECT_EQ(contents(directory / "log"), "mine\n");
  EXPECT_THAT(error_text<SystemError>(
                  [&] { AppendedFile(directory / "log", Existing::kRefuse); }),
              AllOf(HasSubstr("name another file"), HasSubstr("File exists")));
}

TEST(AppendedFile, IsCreatedAnewWhereItWasRenamedOrDeleted) {
  const TestDirectory directory;
  AppendedFile file(directory / "log");
  file.append_line("first");
  fs::rename(file.path(), directory / "log.1");
  file.append_line("second");
  EXPECT_EQ(contents(directory / "log.1"), "first\n");
  EXPECT_EQ(contents(file.path()), "second\n");

  // Deleted by the holder of the lock, while another process waits for it.
  FileDescriptor held(::open(file.path().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  const int copy = held.get();
  const pid_t child = fork_to([&] { file.append_line("third", kTimeout); });
  const Deadline deadline(kTimeout);
  while (!has_open(child, file.path(), copy) && !deadline.expired())
    std::this_thread::yield();
  fs::remove(file.path());
  ::flock(held.get(), LOCK_UN);
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(contents(file.path()), "third\n");
}

TEST(AppendedFile, StaysTheSameFileInAnotherCurrentFolder) {
  const TestDirectory directory;
  const fs::path before = fs::current_path();
  fs::current_path(directory.path());
  AppendedFile file("log");
  fs::current_path(before);
  file.append_line("line");
  EXPECT_EQ(contents(directory / "log"), "line\n");
}

}  // namespace
}  // namespace lockstep
