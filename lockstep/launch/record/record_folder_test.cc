#include "lockstep/launch/record/record_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <string>

#include "lockstep/base/testing/test_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A folder of records that were written `age` ago.
fs::path leave_records(const fs::path& path, std::chrono::hours age) {
  fs::create_directories(path);
  std::ofstream(path / "rank-0.json") << "{}";
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
  return path;
}

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
  { const auto own = RecordFolder::make_in(""); }
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(recent / "rank-0.json"));
  EXPECT_TRUE(fs::exists(others / "rank-0.json"));
}

TEST_F(RecordFolderAmongOthers, KeepsThoseOfAJobThatRunsForLong) {
  const auto running = RecordFolder::make_in("");
  leave_records(running.path(), std::chrono::hours(24 * 30));
  { const auto own = RecordFolder::make_in(""); }
  EXPECT_TRUE(fs::exists(running.path() / "rank-0.json"));
}

TEST_F(RecordFolderAmongOthers, KeepsAllInAFolderThatTheUserNamed) {
  const fs::path old = leave_records(temporary_ / "lockstep-records-aaaaaa",
                                     std::chrono::hours(24 * 80));
  { const auto own = RecordFolder::make_in(temporary_); }
  EXPECT_TRUE(fs::exists(old / "rank-0.json"));
}

}  // namespace
}  // namespace lockstep
