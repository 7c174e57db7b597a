#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "apps/blame/blame_command.h"
#include "apps/testing/hand_made_records.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A folder of dumps.
class BlameFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    replace_text_file(std::filesystem::path(path_) / name, text);
  }
  std::string report(ReportFormat format = ReportFormat::kText) const {
    return blame({.folder = path_, .format = format}).text;
  }

  const TestDirectory made_;
  const std::string path_ = made_.path();
};

TEST_F(BlameFolder, IsReadPastFilesThatAreHostileOrTruncated) {
  RankRecord survivor = rank_record(0);
  add(survivor, 7, 0.1);
  fail(survivor, "PeerFailure", 2);
  write_record(path_, survivor);
  const std::string whole = encode_record(rank_record(1));
  write("rank-1.json", whole.substr(0, whole.size() / 2));
  write("rank-3.json", "[[[[[[");
  write("rank-5.json", encode_record(survivor));
  write("job.json", "{}");
  write("notes.txt", "not ours");
  std::filesystem::create_directory(path_ + "/rank-6.json");
  EXPECT_THAT(report(), AllOf(HasSubstr("Rank 2 of 4 died"),
                              HasSubstr("unusable: rank-1.json: not a record"),
                              HasSubstr("unusable: rank-3.json: not a record"),
                              HasSubstr("rank-5.json: rank 0 has another"),
                              HasSubstr("rank-6.json: not a regular file"),
                              HasSubstr("job.json: not a job's record"),
                              HasSubstr("records: of rank 0; none of ranks 1, "
                                        "2, 3"),
                              Not(HasSubstr("notes.txt"))));
}

TEST_F(BlameFolder, IsReadWithoutTheRecordsOfAnEarlierJob) {
  RankRecord old = rank_record(3);
  old.written_at -= 3600;
  write_record(path_, old);
  write_record(path_, rank_record(0));
  EXPECT_THAT(report(),
              AllOf(HasSubstr("records: of rank 0; none"),
                    HasSubstr("rank-3.json: too old: written 3600 s before")));
}

TEST_F(BlameFolder, IsReadWithoutTheRecordsOfAnotherJob) {
  const auto put = [&](int rank, const std::string& job, int world_size,
                       double earlier) {
    RankRecord record = rank_record(rank);
    record.job = job;
    record.world_size = world_size;
    record.written_at -= earlier;
    write_record(path_, record);
  };
  put(0, "a/7/1", 4, 0);
  put(1, "b/9/2", 4, 1);
  put(2, "", 4, 1);
  put(3, "a/7/1", 5, 1);
  write_job_record(path_, {.workers = 8, .rank = 6, .signal = 9});
  EXPECT_THAT(report(),
              AllOf(HasSubstr("records: of ranks 0, 2; none of ranks 1, 3"),
                    HasSubstr("rank-1.json: of another job: b/9/2, where the "
                              "newest record says a/7/1"),
                    HasSubstr("rank-3.json: of another job: 5 ranks"),
                    HasSubstr("job.json: of another job: rank 6"),
                    Not(HasSubstr("killed"))));
}

TEST_F(BlameFolder, IsReadWithoutRecordsOfAnotherVersionOfTheFormat) {
  write_record(path_, rank_record(0));
  std::string newer = encode_record(rank_record(1));
  const std::string_view version = "\"version\": 1";
  newer.replace(newer.find(version), version.size(), "\"version\": 2");
  write("rank-1.json", newer);
  EXPECT_THAT(report(),
              HasSubstr("unusable: rank-1.json: not a record: it has version 2 "
                        "of the format, expected 1"));
}

// A record may be truncated anywhere, and any byte may be wrong.
TEST_F(BlameFolder, IsReadWhateverHappenedToAFile) {
  RankRecord record = rank_record(1);
  wait_in(add(record, 7, 20));
  fail(record, "Timeout");
  const std::string whole = encode_record(record);
  write_record(path_, rank_record(0));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    write("rank-1.json", whole.substr(0, at));
    EXPECT_THAT(report(), HasSubstr("records: of")) << "cut at " << at;
    for (const char byte : {'9', '-', '"', '\xff'}) {
      std::string spoilt = whole;
      spoilt[at] = byte;
      write("rank-1.json", spoilt);
      EXPECT_THAT(report(), HasSubstr("records: of")) << byte << " at " << at;
    }
  }
}

TEST_F(BlameFolder, IsLockedWhileItIsRead) {
  write_record(path_, rank_record(0));
  std::atomic<bool> seen{false};
  std::thread reader([&] {
    while (!seen) report();
  });
  const FileDescriptor folder(
      ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Deadline timeout = std::chrono::seconds(20);
  bool locked = false;
  while (!locked && !timeout.expired()) {
    locked =
        ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    ::flock(folder.get(), LOCK_UN);
  }
  seen = true;
  reader.join();
  EXPECT_TRUE(locked);
}

TEST_F(BlameFolder, IsToldAsJsonToo) {
  RankRecord record = rank_record(0);
  add(record, 7, 0.1);
  fail(record, "PeerFailure", 2);
  write_record(path_, record);
  const JobRecord job{.workers = 4,
                      .rank = 2,
                      .signal = 11,
                      .seconds = 3,
                      .lost_a_peer = true,
                      .stopped = {0, 3}};
  write_job_record(path_, job);
  EXPECT_EQ(decode_job_record(encode_job_record(job)), job);
  EXPECT_THAT(report(ReportFormat::kJson),
              AllOf(HasSubstr("\"fault\": \"death\""),
                    HasSubstr("was killed by signal 11 (SIGSEGV)"),
                    HasSubstr("\"unusable\": []")));
}

TEST_F(BlameFolder, IsRefusedWhenNothingInItIsOfUse) {
  EXPECT_THROW(report(), InvalidArgument);
  write("rank-0.json", "");
  EXPECT_THROW(report(), InvalidArgument);
  EXPECT_THROW(blame({.folder = path_ + "/missing"}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
