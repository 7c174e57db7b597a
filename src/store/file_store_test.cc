// Specific to file://: a file that others may have left, damaged or deleted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_timeout.h"
#include "src/net/testing/another_user.h"
#include "src/store/file_log.h"
#include "src/store/testing/store_testing.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class FileStore : public testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "store").string(); }
  std::string url() const { return "file://" + path(); }
  std::shared_ptr<Store> open(const std::string& token = "secret") const {
    return open_store(url(), {.token = token});
  }

  // Appends to the file like a process that dies while it writes.
  void append(const std::string& bytes) const {
    std::ofstream file(path(), std::ios::binary | std::ios::app);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    allow(std::filesystem::perms::owner_read |
          std::filesystem::perms::owner_write);
  }

  void allow(std::filesystem::perms permissions) const {
    std::filesystem::permissions(path(), permissions);
  }

  std::string refusal() const {
    return error_text<InvalidArgument>([&] { open(); });
  }

  TestDirectory folder_;
};

TEST_F(FileStore, LosesNoAddOfManyProcesses) {
  const auto store = open();
  std::vector<std::unique_ptr<StoreChild>> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(std::make_unique<StoreChild>(
        std::vector<std::string>{"add", url(), "secret", "count", "100"}));
  for (const auto& child : children) EXPECT_EQ(child->wait(), 0);
  EXPECT_EQ(store->add("count", 0, kTimeout), 400);
}

TEST_F(FileStore, LosesNoAddWhenAProcessIsKilled) {
  const auto store = open();
  {
    StoreChild killed({"add", url(), "secret", "count", "1000000"});
    store->get("count", kTimeout);
  }
  const std::int64_t before = store->add("count", 0, kTimeout);
  EXPECT_GT(before, 0);
  EXPECT_EQ(open()->add("count", 1, kTimeout), before + 1);
}

TEST_F(FileStore, DeletesItsFileWhenTheLastOneLeaves) {
  auto one = open();
  auto other = open();
  one.reset();
  EXPECT_TRUE(std::filesystem::exists(path()));
  other->set("key", {}, kTimeout);
  other.reset();
  EXPECT_FALSE(std::filesystem::exists(path()));
  // The path can be reused and holds no old keys.
  EXPECT_FALSE(open()->erase("key", kTimeout));
}

TEST_F(FileStore, DeletesItsFileWhenTwoLeaveAtOnce) {
  constexpr std::uint64_t kJob = 1;
  FileLog one(path());
  FileLog other(path());
  for (FileLog* log : {&one, &other}) {
    const auto lock = log->try_lock(FileLog::Access::kWrite);
    ASSERT_TRUE(lock && log->join(kJob));
  }
  // Neither store has closed the file when the other leaves.
  for (FileLog* log : {&one, &other}) {
    const auto lock = log->try_lock(FileLog::Access::kWrite);
    ASSERT_TRUE(lock);
    log->leave();
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(FileStore, SurvivesThatManyComeAndGo) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) open()->add("count", 1, kTimeout);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(FileStore, FollowsNoLink) {
  const auto victim = folder_.path() / "victim";
  std::filesystem::create_symlink(victim, path());
  EXPECT_THAT(refusal(), HasSubstr("is a link"));
  EXPECT_FALSE(std::filesystem::exists(victim));
  std::filesystem::remove(path());

  append("");
  std::filesystem::create_hard_link(path(), victim);
  EXPECT_THAT(refusal(), HasSubstr("has a second name"));
  EXPECT_EQ(std::filesystem::file_size(victim), 0u);
}

TEST_F(FileStore, RefusesAFileThatOtherUsersMayUse) {
  using std::filesystem::perms;
  for (const perms others : {perms::group_read, perms::group_write,
                             perms::others_read, perms::others_write}) {
    append("");
    allow(perms::owner_read | perms::owner_write | others);
    EXPECT_THAT(refusal(), HasSubstr("may be used by other users"));
  }
}

TEST_F(FileStore, RefusesAnotherUsersFile) {
  LOCKSTEP_NEEDS_ROOT();
  append("");
  ASSERT_EQ(::chown(path().c_str(), 65534, 65534), 0);
  EXPECT_THAT(refusal(), HasSubstr("belongs to user 65534; this process runs "
                                   "as user 0"));
}

TEST_F(FileStore, RefusesWhatIsNoFile) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("is not a regular file"));
}

TEST_F(FileStore, RefusesAFileThatAKilledJobLeft) {
  {
    StoreChild child({"leave-will", url(), "secret", "rank 0"});
    while (!std::filesystem::exists(path())) std::this_thread::yield();
    open()->get("rank 0/ready", kTimeout);
  }
  EXPECT_TRUE(std::filesystem::exists(path()));
  const std::string message = error_text([&] { open(); });
  EXPECT_THAT(message, HasSubstr(path() + " is left from an earlier job"));
  EXPECT_THAT(message, HasSubstr("next:    delete it"));
}

TEST_F(FileStore, RefusesTheFileOfAnotherJob) {
  const auto store = open();
  const std::string message = error_text([&] { open("another"); });
  EXPECT_THAT(message, HasSubstr("token was another one"));
}

TEST_F(FileStore, LeavesAFileAloneThatIsNoStores) {
  const std::string text = "a thesis, of which there is no copy";
  append(text);
  const std::string message = error_text([&] { open(); });
  EXPECT_THAT(message, HasSubstr("is not a store's file"));
  std::ifstream file(path());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
}

TEST_F(FileStore, RefusesAnotherVersionOfItsFormat) {
  append(std::string("LKSFILE\x07") + std::string(8, '\0'));
  const std::string message = error_text([&] { open(); });
  EXPECT_THAT(message, HasSubstr("version 7"));
}

TEST_F(FileStore, OverwritesHalfARecordOfAProcessThatDied) {
  const auto store = open();
  store->set("key", to_bytes("value"), kTimeout);
  // Longer than the record that overwrites it.
  append(std::string("\xff\0\0\0\x01\x03\0key", 10) + std::string(200, 'v'));
  EXPECT_EQ(to_text(store->get("key", kTimeout)), "value");
  const auto other = open();
  other->set("other", to_bytes("value"), kTimeout);
  EXPECT_EQ(to_text(store->get("other", kTimeout)), "value");
  EXPECT_EQ(to_text(open()->get("key", kTimeout)), "value");
}

TEST_F(FileStore, SaysWhereItsFileIsDamaged) {
  const auto store = open();
  append(std::string("\x03\0\0\0\x09\0\0", 7));
  const std::string message = error_text([&] { store->get("key", kTimeout); });
  EXPECT_THAT(message, HasSubstr(path() + " is damaged at byte 16"));
  std::filesystem::remove(path());
}

TEST_F(FileStore, NoticesThatItsFileWasDeleted) {
  const auto store = open();
  std::thread waiting(
      [&] { EXPECT_THROW(store->get("never", kTimeout), NetworkError); });
  std::filesystem::remove(path());
  waiting.join();
  EXPECT_THROW(store->set("key", {}, kTimeout), NetworkError);
  // The old store must not delete a new store at the same path.
  const auto next = open();
  next->set("key", to_bytes("new"), kTimeout);
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(FileStore, DeletesNoOtherFileThatTookItsPlace) {
  auto store = open();
  std::filesystem::rename(path(), path() + ".moved");
  append("another file");
  store.reset();
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(FileStore, LosesNothingWhenTheDiskIsFull) {
  const auto store = open();
  EXPECT_EQ(StoreChild({"fill", url(), "secret"}).wait(), 0);
  EXPECT_EQ(to_text(store->get("before", kTimeout)), "small");
  EXPECT_EQ(to_text(store->get("after", kTimeout)), "small");
  EXPECT_FALSE(store->erase("large", kTimeout));
}

TEST_F(FileStore, WaitsNoLongerThanItMayForAStoppedProcess) {
  const auto store = open();
  store->set("key", {}, kTimeout);
  std::optional<FileLog> other(path());
  {
    const auto lock = other->try_lock(FileLog::Access::kWrite);
    ASSERT_TRUE(lock);
    EXPECT_THROW(store->set("key", {}, Deadline(5ms)), Timeout);
    EXPECT_THROW(store->get("key", Deadline(5ms)), Timeout);
    EXPECT_THROW(open_store(url(), {.token = "secret", .deadline = 5ms}),
                 Timeout);
    Cancellation cancellation;
    std::thread canceller([&] { cancellation.cancel(); });
    EXPECT_THROW(store->get("key", kTimeout, &cancellation), Cancelled);
    canceller.join();
  }
  store->get("key", kTimeout);
}

TEST_F(FileStore, NamesTheFileThatItCannotOpen) {
  const std::string message = error_text<SystemError>(
      [&] { open_store("file://" + path() + "/in/no/folder"); });
  EXPECT_THAT(message, HasSubstr(path() + "/in/no/folder"));
  EXPECT_THAT(message, HasSubstr("No such file or directory"));
}

TEST_F(FileStore, LeavesTheFileToTheParentOfAForkedProcess) {
  auto store = open();
  store->set_last_will({"will"}, {}, kTimeout);
  const pid_t child = ::fork();
  if (child == 0) {
    store.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_FALSE(store->erase("will", kTimeout));
}

}  // namespace
}  // namespace lockstep
