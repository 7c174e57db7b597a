#include "src/launch/record/record_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "src/base/testing/test_directory.h"
#include "src/launch/record/record_errors.h"
#include "src/net/testing/scarce_descriptors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void set_age(const fs::path& path, std::chrono::hours age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

// A folder of `files` that were written `age` ago.
fs::path leave_files(const fs::path& path, std::chrono::hours age,
                     const std::vector<std::string>& files) {
  fs::create_directories(path);
  for (const std::string& file : files) {
    std::ofstream(path / file) << "{}";
    set_age(path / file, age);
  }
  set_age(path, age);
  return path;
}

fs::path leave_records(const fs::path& path, std::chrono::hours age) {
  return leave_files(path, age, {"rank-0.json"});
}

constexpr std::chrono::hours kMonth{24 * 30};

class RecordFolderAmongOthers : public testing::Test {
 protected:
  void SetUp() override {
    const char* const before = ::getenv("TMPDIR");
    if (before != nullptr) before_ = before;
    ::setenv("TMPDIR", made_.path().c_str(), 1);
  }
  void TearDown() override {
    if (before_.empty())
      ::unsetenv("TMPDIR");
    else
      ::setenv("TMPDIR", before_.c_str(), 1);
  }

  const TestDirectory made_;
  const fs::path temporary_ = made_.path();
  std::string before_;
};

TEST_F(RecordFolderAmongOthers, RemovesTheFailedJobsOfLastWeek) {
  using std::chrono::hours;
  const fs::path old =
      leave_records(temporary_ / "lockstep-records-aaaaaa", hours(24 * 8));
  const fs::path recent =
      leave_records(temporary_ / "lockstep-records-bbbbbb", hours(24 * 6));
  const fs::path others = leave_records(temporary_ / "others", hours(24 * 80));
  fs::create_directory_symlink(others, temporary_ / "lockstep-records-cccccc");
  remove_forgotten_records();
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(recent / "rank-0.json"));
  EXPECT_TRUE(fs::exists(others / "rank-0.json"));
}

TEST_F(RecordFolderAmongOthers, RemovesAnEmptyOneOfAKilledLauncherAtOnce) {
  const fs::path empty = temporary_ / "lockstep-records-aaaaaa";
  fs::create_directory(empty);
  const auto running = RecordFolder::make_in("");
  remove_forgotten_records();
  EXPECT_FALSE(fs::exists(empty));
  EXPECT_TRUE(fs::exists(running.path()));
}

TEST_F(RecordFolderAmongOthers, RemovesRecordsThatSayNothing) {
  fs::path made;
  {
    auto own = RecordFolder::make_in("");
    auto chosen = RecordFolder(temporary_ / "chosen");
    for (RecordFolder* folder : {&own, &chosen}) {
      std::ofstream(folder->path() / "rank-0.json") << "{}";
      folder->forget_records();
    }
    made = own.path();
  }
  EXPECT_FALSE(fs::exists(made));
  EXPECT_TRUE(fs::exists(temporary_ / "chosen/rank-0.json"));
}

TEST_F(RecordFolderAmongOthers, KeepsThoseOfAJobThatRunsForLong) {
  const auto running = RecordFolder::make_in("");
  leave_records(running.path(), std::chrono::hours(24 * 30));
  remove_forgotten_records();
  EXPECT_TRUE(fs::exists(running.path() / "rank-0.json"));
}

TEST_F(RecordFolderAmongOthers, RemovesEveryFileOfAForgottenJob) {
  const fs::path old =
      leave_files(temporary_ / "lockstep-records-aA0bB1", kMonth,
                  {"rank-0.json", "rank-11.json", ".rank-3.json.77.tmp",
                   ".rank-3.json.77-1.tmp", ".job.json.77.tmp", "job.json",
                   "error-2.json"});
  remove_forgotten_records();
  EXPECT_FALSE(fs::exists(old));
}

TEST_F(RecordFolderAmongOthers, IsMadeOnceThoughNoDescriptorIsLeft) {
  std::optional<RecordFolder> own;
  {
    const ScarceDescriptors scarce(0);
    own.emplace(RecordFolder::make_in(""));
  }
  EXPECT_TRUE(fs::is_directory(own->path()));
  const fs::directory_iterator made(temporary_);
  EXPECT_EQ(std::distance(fs::begin(made), fs::end(made)), 1);
}

TEST_F(RecordFolderAmongOthers, IsRemovedWithTheExceptionsOfItsRanks) {
  fs::path made;
  {
    const auto own = RecordFolder::make_in("");
    made = own.path();
    std::ofstream(made / "error-0.json") << "{}";
  }
  EXPECT_FALSE(fs::exists(made));
}

TEST_F(RecordFolderAmongOthers, KeepsAFolderWhoseNameIsTheUsers) {
  const std::vector<std::string> names{"mine", "toolong", "a_b.cd", ""};
  for (const std::string& name : names)
    leave_records(temporary_ / ("lockstep-records-" + name), kMonth);
  remove_forgotten_records();
  for (const std::string& name : names)
    EXPECT_TRUE(
        fs::exists(temporary_ / ("lockstep-records-" + name) / "rank-0.json"))
        << name;
}

TEST_F(RecordFolderAmongOthers, KeepsAFolderThatHoldsAnythingElse) {
  for (const std::string file : {"notes.txt", "rank-x.json", "rank-.json",
                                 ".rank-0.json.tmp", ".rank-0.json.77-.tmp"}) {
    const fs::path old = leave_files(temporary_ / "lockstep-records-aaaaaa",
                                     kMonth, {"rank-0.json", file});
    remove_forgotten_records();
    EXPECT_TRUE(fs::exists(old / "rank-0.json")) << file;
    EXPECT_TRUE(fs::exists(old / file)) << file;
    fs::remove_all(old);
  }
}

TEST_F(RecordFolderAmongOthers, KeepsAFolderWithAFileThatIsNew) {
  const fs::path old =
      leave_records(temporary_ / "lockstep-records-aaaaaa", kMonth);
  set_age(old / "rank-0.json", std::chrono::hours(1));
  remove_forgotten_records();
  EXPECT_TRUE(fs::exists(old / "rank-0.json"));
}

TEST_F(RecordFolderAmongOthers, KeepsTheFolderThatARunningJobWasGiven) {
  const RecordFolder running(temporary_ / "lockstep-records-chosen");
  leave_records(running.path(), kMonth);
  remove_forgotten_records();
  EXPECT_TRUE(fs::exists(running.path() / "rank-0.json"));
}

TEST_F(RecordFolderAmongOthers, KeepsAFolderThatIsBeingRead) {
  const fs::path old =
      leave_records(temporary_ / "lockstep-records-aaaaaa", kMonth);
  {
    const FileDescriptor lock = lock_records(old);
    remove_forgotten_records();
    EXPECT_TRUE(fs::exists(old / "rank-0.json"));
  }
  remove_forgotten_records();
  EXPECT_FALSE(fs::exists(old));
}

TEST_F(RecordFolderAmongOthers, KeepsWhatOthersPutIntoItsOwnFolder) {
  fs::path path;
  {
    const auto own = RecordFolder::make_in("");
    path = own.path();
    std::ofstream(path / "notes.txt") << "a worker's";
  }
  EXPECT_TRUE(fs::exists(path / "notes.txt"));
}

TEST_F(RecordFolderAmongOthers, IsGoneWhenItsJobHasLeftNoRecords) {
  fs::path made;
  {
    const auto own = RecordFolder::make_in("");
    const RecordFolder chosen(temporary_ / "chosen");
    made = own.path();
    std::ofstream(made / ".rank-0.json.77.tmp") << "{";
    EXPECT_TRUE(fs::exists(chosen.path()));
  }
  EXPECT_FALSE(fs::exists(made));
  EXPECT_FALSE(fs::exists(temporary_ / "chosen"));
}

TEST_F(RecordFolderAmongOthers, MovesTheRecordsOfEarlierJobsAway) {
  const std::chrono::hours now{0};
  const fs::path path = leave_files(temporary_ / "chosen", now,
                                    {"rank-0.json", "job.json", "notes.txt"});
  const fs::path first = RecordFolder(path).earlier();
  EXPECT_EQ(first.string(), (path / "earlier-1").string());
  EXPECT_FALSE(has_records(path));
  EXPECT_FALSE(fs::exists(path / "job.json"));
  EXPECT_TRUE(fs::exists(path / "notes.txt"));
  EXPECT_TRUE(fs::exists(first / "rank-0.json"));
  EXPECT_TRUE(fs::exists(first / "job.json"));
  leave_records(path, now);
  EXPECT_TRUE(RecordFolder(path).earlier() == path / "earlier-2");
  EXPECT_TRUE(fs::exists(first / "rank-0.json"));
  EXPECT_TRUE(RecordFolder(path).earlier().empty());
}

TEST_F(RecordFolderAmongOthers, LeavesTheRecordsOfARunningJobInPlace) {
  const RecordFolder running(temporary_ / "chosen");
  leave_records(running.path(), std::chrono::hours(0));
  const RecordFolder second(running.path());
  EXPECT_TRUE(second.earlier().empty());
  EXPECT_TRUE(has_records(running.path()));
}

// Of an error that the launcher knows, and of others.
TEST(RecordErrors, AreThoseBesideTheLossOfARank) {
  const TestDirectory folder;
  const auto leave = [&](const std::string& failures) {
    std::ofstream(folder / "rank-0.json")
        << R"({"failures": )" << failures << "}";
    return have_errors_beside_loss_of(1, folder.path());
  };
  const std::string loss = R"({"type": "PeerFailure", "culprit": 1})";
  const std::string other = R"({"type": "PeerFailure", "culprit": 2})";
  EXPECT_FALSE(leave("[]"));
  EXPECT_FALSE(leave("[" + loss + "]"));
  EXPECT_TRUE(leave("[" + loss + ", " + other + "]"));
  EXPECT_TRUE(leave(R"([{"type": "Timeout"}])"));
  EXPECT_FALSE(leave("[{"));  // cut short
}

}  // namespace
}  // namespace lockstep
