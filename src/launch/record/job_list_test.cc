#include "src/launch/record/job_list.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "src/base/testing/lookup_in.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_seed.h"
#include "src/net/pipe.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JobFolder {
 public:
  std::filesystem::path path() const { return made_ / "jobs"; }
  JobList list() const {
    return list_jobs([this](const std::string& name) {
      return name == "LOCKSTEP_JOBS_DIR" ? std::optional(path().string())
                                         : std::nullopt;
    });
  }
  // The names of the files in it.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path()))
      names.push_back(entry.path().filename().string());
    return names;
  }
  std::filesystem::path file_ending_in(const std::string& ending) const {
    for (const std::string& name : names())
      if (name.ends_with(ending)) return path() / name;
    return {};
  }

 private:
  TestDirectory made_;
};

ListedJob some_job() {
  return {.command = {"program", "--flag"},
          .run_id = "7",
          .world_size = 4,
          .restarts = 1,
          .pids = {10, 11},
          .ranks = {2, 3},
          .began = std::chrono::steady_clock::now()};
}

TEST(JobList, HasAJobFromItsStartToItsEnd) {
  const JobFolder folder;
  EXPECT_THAT(folder.list().jobs, IsEmpty());
  EXPECT_THAT(folder.list().problems, IsEmpty());
  {
    JobListing listing(folder.path(), 2);
    EXPECT_FALSE(listing.steps_file().empty());
    EXPECT_THAT(folder.list().jobs, IsEmpty())
        << "its workers have not started";
    listing.publish(some_job());
    const JobList list = folder.list();
    ASSERT_EQ(list.jobs.size(), 1u);
    const ListedJob& job = list.jobs[0];
    EXPECT_EQ(job.launcher, ::getpid());
    EXPECT_THAT(job.command, ElementsAre("program", "--flag"));
    EXPECT_EQ(job.run_id, "7");
    EXPECT_EQ(job.world_size, 4);
    EXPECT_THAT(job.ranks, ElementsAre(2, 3));
    EXPECT_EQ(job.restarts, 1);
    EXPECT_THAT(job.pids, ElementsAre(10, 11));
    EXPECT_GE(job.running.count(), 0);
    EXPECT_TRUE(job.steps);
  }
  EXPECT_THAT(folder.names(), IsEmpty()) << "nothing is left";
}

TEST(JobList, HasTheOldestJobFirst) {
  const JobFolder folder;
  JobListing young(folder.path(), 1), old(folder.path(), 1);
  ListedJob job = some_job();
  young.publish(job);
  job.began -=
      job.began.time_since_epoch() / 2;  // the host may just have begun
  job.run_id = "old";
  old.publish(job);
  const JobList list = folder.list();
  ASSERT_EQ(list.jobs.size(), 2u);
  EXPECT_EQ(list.jobs[0].run_id, "old");
}

TEST(JobList, IsAFolderOfItsUserAlone) {
  const JobFolder folder;
  const JobListing listing(folder.path(), 1);
  struct stat status {};
  ASSERT_EQ(::stat(folder.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST(JobList, ForgetsALauncherThatWasKilled) {
  const JobFolder folder;
  Pipe listed = make_pipe();
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    JobListing listing(folder.path(), 1);
    listing.publish(some_job());
    ::close(listed.write.release());
    for (;;) ::pause();
  }
  listed.write.reset();
  char none = 0;
  ASSERT_EQ(::read(listed.read.get(), &none, 1), 0);
  EXPECT_EQ(folder.list().jobs.size(), 1u);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  const std::string listed_file = folder.file_ending_in(".json").filename();
  std::ofstream(folder.path() / ("." + listed_file + ".3.tmp")) << "{";
  EXPECT_THAT(folder.list().jobs, IsEmpty());
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(JobList, RemovesNoFileOfTheUser) {
  const JobFolder folder;
  std::filesystem::create_directory(folder.path());
  std::filesystem::permissions(folder.path(),
                               std::filesystem::perms::owner_all);
  for (const char* name :
       {"job-42.sh", "job-123.out", "job-1-2.steps", "job-1-2.json", "notes"})
    std::ofstream(folder.path() / name) << "of the user";
  EXPECT_THAT(folder.list().jobs, IsEmpty());
  { const JobListing listing(folder.path(), 1); }
  EXPECT_EQ(folder.names().size(), 5u);
}

TEST(JobList, IsNotReadOrWrittenWhereOthersCanWrite) {
  const JobFolder folder;
  std::filesystem::create_directory(folder.path());
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  EXPECT_EQ(JobListing(folder.path(), 1).steps_file(), "");
  ASSERT_EQ(folder.list().problems.size(), 1u);
  EXPECT_THAT(folder.list().problems[0], HasSubstr("belongs to user"));
}

TEST(JobList, DoesNotFollowALinkToAnotherFolder) {
  const JobFolder folder;
  const TestDirectory other;
  std::filesystem::permissions(other.path(), std::filesystem::perms::owner_all);
  std::filesystem::create_directory_symlink(other.path(), folder.path());
  EXPECT_EQ(JobListing(folder.path(), 1).steps_file(), "");
  EXPECT_EQ(folder.list().problems.size(), 1u);
  EXPECT_THAT(other.entries(), IsEmpty());
}

TEST(JobList, SaysWhenItsFolderCannotBeMade) {
  const TestDirectory made;
  const JobList list =
      list_jobs(lookup_in({{"LOCKSTEP_JOBS_DIR", made / "no/such/folder"}}));
  ASSERT_EQ(list.problems.size(), 1u);
  EXPECT_THAT(list.problems[0], HasSubstr("No such file or directory"));
}

TEST(JobList, RefusesAFolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const JobFolder folder;
  std::filesystem::create_directory(folder.path());
  ASSERT_EQ(::chmod(folder.path().c_str(), S_IRWXU), 0);
  ASSERT_EQ(::chown(folder.path().c_str(), 65534, 65534), 0);
  EXPECT_EQ(JobListing(folder.path(), 1).steps_file(), "");
  EXPECT_EQ(folder.list().problems.size(), 1u);
}

// Issue 43, point 15: root was shown the jobs of all users without asking.
TEST(JobList, HasJobsOfOtherUsersOnlyWhereTheyAreAskedFor) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr uid_t kOther = 3'999'999'001;
  const auto nothing = lookup_in({});
  const auto shown = [&](JobsOf whose) {
    return std::ranges::count(list_jobs(nothing, whose).jobs, kOther,
                              &ListedJob::user);
  };
  ASSERT_EQ(::seteuid(kOther), 0);
  auto listing = std::make_optional<JobListing>(job_list_folder(nothing), 1);
  listing->publish(some_job());
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(shown(JobsOf::kThisUser), 0);
  EXPECT_EQ(shown(JobsOf::kAllUsers), 1);
  ASSERT_EQ(::seteuid(kOther), 0);
  listing.reset();
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(shown(JobsOf::kAllUsers), 0);
}

TEST(JobList, SkipsWhatIsNotAJob) {
  const JobFolder folder;
  JobListing listing(folder.path(), 1);
  listing.publish(some_job());
  const std::filesystem::path file = folder.file_ending_in(".json");
  const std::string good = contents(file);
  const auto number_of_jobs = [&](const std::string& text) {
    std::ofstream(file) << text;
    return folder.list().jobs.size();
  };
  EXPECT_EQ(number_of_jobs(good), 1u);
  for (std::size_t size = 0; size + 3 < good.size(); ++size)
    ASSERT_EQ(number_of_jobs(good.substr(0, size)), 0u) << size;
  for (const char* text : {"[]", "{}", "null", "7", "\"x\""})
    EXPECT_EQ(number_of_jobs(text), 0u) << text;
  const auto with = [&](const std::string& name, const std::string& value) {
    nlohmann::json object = nlohmann::json::parse(good);
    object[name] = nlohmann::json::parse(value);
    return object.dump();
  };
  EXPECT_EQ(number_of_jobs(with("restarts", "2")), 1u);
  for (const char* number : {"-1", "4294968530", "-4294966062"}) {
    EXPECT_EQ(number_of_jobs(with("launcher", number)), 0u) << number;
    EXPECT_EQ(number_of_jobs(with("world_size", number)), 0u) << number;
    EXPECT_EQ(number_of_jobs(with("restarts", number)), 0u) << number;
    const std::string list = fmt::format("[7, {}]", number);
    EXPECT_EQ(number_of_jobs(with("workers", list)), 0u) << number;
    EXPECT_EQ(number_of_jobs(with("ranks", list)), 0u) << number;
  }
  EXPECT_EQ(number_of_jobs(std::string(std::size_t{2} << 20, ' ')), 0u);
  EXPECT_EQ(number_of_jobs(std::string(1'000'000, '[')), 0u);
  const unsigned long seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::string damaged = good;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    number_of_jobs(damaged);  // any answer, but an answer
  }
}

TEST(JobList, DoesNotOpenPipesAndLinks) {
  const JobFolder folder;
  JobListing listing(folder.path(), 1);
  listing.publish(some_job());
  const std::filesystem::path file = folder.file_ending_in(".json");
  const std::string good = contents(file);
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), S_IRUSR | S_IWUSR), 0);
  EXPECT_THAT(folder.list().jobs, IsEmpty());
  std::filesystem::remove(file);
  std::ofstream(folder.path() / "elsewhere") << good;
  std::filesystem::create_symlink("elsewhere", file);
  EXPECT_THAT(folder.list().jobs, IsEmpty());
}

TEST(JobList, CutsACommandThatIsTooLong) {
  const JobFolder folder;
  JobListing listing(folder.path(), 1);
  ListedJob job = some_job();
  job.command = {"program", std::string(std::size_t{1} << 20, 'x'), "more"};
  listing.publish(job);
  ASSERT_EQ(folder.list().jobs.size(), 1u);
  EXPECT_THAT(folder.list().jobs[0].command, ElementsAre("program", "..."));
}

TEST(JobList, IsInSharedMemoryUnlessTheUserNamesAFolder) {
  EXPECT_EQ(job_list_folder(lookup_in({{"LOCKSTEP_JOBS_DIR", "jobs"}})),
            std::filesystem::current_path() / "jobs");
  EXPECT_EQ(job_list_folder(lookup_in({})),
            "/dev/shm/lockstep-" + std::to_string(::geteuid()));
}

}  // namespace
}  // namespace lockstep
