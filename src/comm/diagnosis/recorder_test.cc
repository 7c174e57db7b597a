#include "src/comm/diagnosis/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"
#include "src/comm/testing/scripted_backend.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A rank of a job of four, whose operations end as the test says.
class RecordedRank : public testing::Test {
 protected:
  RecordedRank() {
    Settings settings;
    settings.dump_directory = folder_;
    settings.fault_file = fault_file();
    world_ = std::make_shared<World>(open_store("memory:"), settings);
    backend_ = std::make_shared<ScriptedBackend>();
    group_ = std::make_shared<ProcessGroup>(std::make_unique<GroupCore>(
        backend_, GroupIdentity{.rank = 2, .size = 4}, std::chrono::minutes(1),
        world_));
  }

  Recorder& recorder() { return *world_->recorder(); }
  std::filesystem::path dump() const { return folder_ + "/rank-2.json"; }
  std::string fault_file() const { return folder_ + "/fault-2.json"; }
  RankRecord read_dump() const {
    return decode_record(read_text_file(dump(), 1 << 20));
  }

  const TestDirectory made_;
  const std::string folder_ = made_.path();
  std::shared_ptr<World> world_;
  std::shared_ptr<ScriptedBackend> backend_;
  std::shared_ptr<ProcessGroup> group_;
};

TEST_F(RecordedRank, SeesWhatCompletesAtOnce) {
  group_->barrier({.label = "before the epoch"}).wait();
  const RankRecord record = recorder().snapshot("request");
  ASSERT_EQ(record.operations.size(), 1u);
  EXPECT_EQ(record.operations[0].state, OperationState::kCompleted);
  EXPECT_EQ(record.operations[0].label, "before the epoch");
  EXPECT_GE(record.operations[0].ended_at, record.operations[0].started_at);
  EXPECT_EQ(record.rank, 2);
  EXPECT_EQ(record.world_size, 4);
  ASSERT_EQ(record.groups.size(), 1u);
  EXPECT_EQ(record.groups[0].name, "default");
  EXPECT_EQ(record.groups[0].backend, "scripted");
  EXPECT_EQ(record.groups[0].last_started, 1u);
  EXPECT_EQ(record.groups[0].last_completed, 1u);
}

TEST_F(RecordedRank, SeesWhatCompletesLater) {
  backend_->next = ScriptedBackend::Outcome::kPending;
  const Work work = group_->barrier();
  EXPECT_EQ(recorder().snapshot("").operations[0].state,
            OperationState::kStarted);
  EXPECT_FALSE(work.done());
  EXPECT_EQ(recorder().pending().size(), 1u);
  EXPECT_FALSE(recorder().pending()[0].entry.awaited);
  backend_->complete();
  EXPECT_EQ(recorder().pending().size(), 1u) << "no thread has polled yet";
  EXPECT_TRUE(work.done());
  EXPECT_EQ(recorder().snapshot("").operations[0].state,
            OperationState::kCompleted);
  EXPECT_EQ(recorder().snapshot("").groups[0].last_completed, 1u);
  EXPECT_TRUE(recorder().pending().empty());
}

TEST_F(RecordedRank, DumpsOnceWhenAnErrorLeavesAWait) {
  backend_->next = ScriptedBackend::Outcome::kPending;
  const Work first = group_->barrier();
  const Work second = group_->barrier();
  backend_->fail(std::make_exception_ptr(PeerFailure(3, "rank 3 is gone")));
  EXPECT_TRUE(first.done());
  EXPECT_FALSE(std::filesystem::exists(dump())) << "no error has left a wait";
  EXPECT_THROW(first.wait(), PeerFailure);
  const RankRecord record = read_dump();
  EXPECT_EQ(record.reason, "failure");
  ASSERT_EQ(record.failures.size(), 1u);
  EXPECT_EQ(record.failures[0].type, "PeerFailure");
  EXPECT_EQ(record.failures[0].message, "rank 3 is gone");
  EXPECT_EQ(record.failures[0].culprit, 3);
  EXPECT_EQ(record.operations[0].state, OperationState::kFailed);

  std::filesystem::remove(dump());
  EXPECT_THROW(second.wait(), PeerFailure);
  EXPECT_THROW(first.wait(), PeerFailure);
  EXPECT_FALSE(std::filesystem::exists(dump())) << "it is the same failure";
  EXPECT_TRUE(recorder().pending().empty()) << "nothing of it can go on";
}

TEST_F(RecordedRank, NotesThatItFailsBecauseOfAnother) {
  backend_->next = ScriptedBackend::Outcome::kPending;
  const Work work = group_->barrier();
  backend_->fail(std::make_exception_ptr(PeerFailure(3, "rank 3 is gone")));
  EXPECT_EQ(read_fault_note(fault_file()), std::nullopt);
  EXPECT_THROW(work.wait(), PeerFailure);
  EXPECT_EQ(read_fault_note(fault_file()),
            (FaultNote{.kind = FaultNote::Kind::kPeerGone,
                       .culprit = 3,
                       .operation = "barrier #1"}));
}

TEST_F(RecordedRank, NotesNoErrorForWhichNoOtherRankIsTheCause) {
  backend_->next = ScriptedBackend::Outcome::kPending;
  const Work work = group_->barrier();
  backend_->fail(std::make_exception_ptr(Mismatch("different calls")));
  EXPECT_THROW(work.wait(), Mismatch);
  EXPECT_EQ(read_fault_note(fault_file()), std::nullopt);
}

TEST(Recorder, CountsTheTimeThatOthersKeepARankWaiting) {
  using std::chrono::nanoseconds;
  using std::chrono::steady_clock;
  std::array<nanoseconds, 2> waited{};
  std::atomic<Recorder*> early{nullptr};
  nanoseconds late_by{};
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Recorder& recorder = *group->core().world()->recorder();
    const nanoseconds before = recorder.time_waited();
    if (group->rank() == 0) {
      early = &recorder;
      group->barrier({.label = "the end"}).wait();
    } else {
      const auto is_waited_for = [](const PendingOperation& operation) {
        return operation.entry.awaited && operation.entry.label == "the end";
      };
      while (early == nullptr ||
             std::ranges::none_of(early.load()->pending(), is_waited_for))
        std::this_thread::yield();
      const auto since = steady_clock::now();
      while (steady_clock::now() - since < std::chrono::milliseconds(5))
        std::this_thread::yield();
      late_by = steady_clock::now() - since;
      group->barrier({.label = "the end"}).wait();
    }
    const nanoseconds after = recorder.time_waited();
    waited[static_cast<std::size_t>(group->rank())] = after - before;
    for (int i = 0; i < 1000; ++i) EXPECT_GE(recorder.time_waited(), after);
    early = nullptr;
  });
  // Only this time calibrates the tick clock.
  EXPECT_GE(waited[0], late_by * 9 / 10);
  EXPECT_GE(waited[1], nanoseconds(0));
}

TEST_F(RecordedRank, CountsNoTimeForWhatWasCompleteWhenItWasAwaited) {
  group_->barrier().wait();
  EXPECT_EQ(recorder().time_waited(), std::chrono::nanoseconds(0));
}

TEST_F(RecordedRank, NamesTheTypeOfEachError) {
  const std::map<std::string, std::exception_ptr> errors{
      {"Mismatch", std::make_exception_ptr(Mismatch("m"))},
      {"Timeout", std::make_exception_ptr(Timeout("t"))},
      {"NetworkError", std::make_exception_ptr(NetworkError("n"))},
      {"Error", std::make_exception_ptr(Error("e"))},
  };
  for (const auto& [type, error] : errors) {
    const auto backend = std::make_shared<ScriptedBackend>();
    ProcessGroup group(std::make_unique<GroupCore>(
        backend, GroupIdentity{.name = type, .rank = 0, .size = 4},
        std::chrono::minutes(1), world_));
    backend->next = ScriptedBackend::Outcome::kFailed;
    backend->fail(error);
    EXPECT_THROW(group.barrier().wait(), Error);
    EXPECT_EQ(read_dump().failures.back().type, type);
  }
}

TEST_F(RecordedRank, ThrowsTheOriginalErrorWhenNoDumpCanBeWritten) {
  std::filesystem::remove_all(folder_);
  replace_text_file(folder_, "a file in the way");
  backend_->next = ScriptedBackend::Outcome::kFailed;
  backend_->fail(std::make_exception_ptr(Mismatch("the original")));
  try {
    group_->barrier().wait();
    FAIL() << "no error";
  } catch (const Mismatch& error) {
    EXPECT_STREQ(error.what(), "the original");
  }
}

TEST_F(RecordedRank, NamesCulpritsByTheirRankInTheJob) {
  const auto backend = std::make_shared<ScriptedBackend>();
  ProcessGroup group(std::make_unique<GroupCore>(
      backend,
      GroupIdentity{.name = "[2,0]#1", .rank = 0, .size = 2, .members = {2, 0}},
      std::chrono::minutes(1), world_));
  backend->next = ScriptedBackend::Outcome::kFailed;
  backend->fail(std::make_exception_ptr(PeerFailure(1, "")));
  EXPECT_THROW(group.barrier().wait(), PeerFailure);
  EXPECT_EQ(read_dump().failures.at(0).culprit, 0);
}

TEST_F(RecordedRank, ForgetsGroupsThatWereLeftLongAgo) {
  for (int i = 0; i < 5; ++i)
    ProcessGroup(std::make_unique<GroupCore>(
                     std::make_shared<ScriptedBackend>(),
                     GroupIdentity{.name = "short-lived", .size = 2},
                     std::chrono::minutes(1), world_))
        .barrier()
        .wait();
  EXPECT_EQ(recorder().snapshot("").groups.size(), 6u);
  for (std::size_t i = 0; i <= OperationRing::kEntries; ++i)
    group_->barrier().wait();
  ProcessGroup last(std::make_unique<GroupCore>(
      std::make_shared<ScriptedBackend>(), GroupIdentity{.size = 2},
      std::chrono::minutes(1), world_));
  EXPECT_EQ(recorder().snapshot("").groups.size(), 2u);
}

TEST_F(RecordedRank, KeepsNeitherGroupNorBackendAlive) {
  backend_->next = ScriptedBackend::Outcome::kPending;
  const std::weak_ptr<ProcessGroup> group = group_;
  const std::weak_ptr<ScriptedBackend> backend = backend_;
  std::ignore = group_->barrier();
  group_.reset();
  backend_.reset();
  EXPECT_TRUE(group.expired());
  EXPECT_TRUE(backend.expired());
  EXPECT_TRUE(recorder().pending().empty());
}

TEST_F(RecordedRank, LetsAWorkOutliveItsWorld) {
  backend_->next = ScriptedBackend::Outcome::kPending;
  const Work work = group_->barrier();
  backend_->complete();
  group_.reset();
  world_.reset();
  work.wait();
}

TEST_F(RecordedRank, SaysWhatItIsDoing) {
  using std::chrono_literals::operator""s;
  const auto later = [] { return std::chrono::steady_clock::now() + 20s; };
  EXPECT_THAT(recorder().describe_activity(later()),
              HasSubstr(", in no operation yet"));
  group_->barrier().wait();
  EXPECT_THAT(
      recorder().describe_activity(later()),
      HasSubstr(", busy with its own work for 20 s, after barrier #1 of "
                "group \"default\""));
  backend_->next = ScriptedBackend::Outcome::kPending;
  const Work work = group_->barrier();
  EXPECT_THAT(recorder().describe_activity(later()),
              HasSubstr("own work for 20 s, after barrier #2"));
  EXPECT_THROW(work.wait(), Timeout);  // the script never completes it
  EXPECT_THAT(recorder().describe_activity(later()), StartsWith("on host "));
}

TEST(AGroupMadeByHand, GoesUnrecorded) {
  const auto backend = std::make_shared<ScriptedBackend>();
  ProcessGroup group(
      std::make_unique<GroupCore>(backend, GroupIdentity{.size = 2}));
  backend->next = ScriptedBackend::Outcome::kFailed;
  backend->fail(std::make_exception_ptr(Mismatch("m")));
  EXPECT_THROW(group.barrier().wait(), Mismatch);
}

}  // namespace
}  // namespace lockstep
