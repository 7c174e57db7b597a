#include "src/checkpoint/rank_zero.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"
#include "src/faults/fault_note.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(RunOnRankZero, RunsOnceAndIsOverOnEveryRankAfterwards) {
  std::atomic<int> runs = 0;
  run_ranks("shm", 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    run_on_rank_zero(*group, "counting", [&] { ++runs; });
    EXPECT_EQ(runs, 1);
  });
}

TEST(RunOnRankZero, TellsEveryRankWhatWentWrongThereAndKeepsTheGroup) {
  run_ranks("shm", 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    std::string message;
    try {
      run_on_rank_zero(*group, "saving the model",
                       [] { throw SystemError("no room", ENOSPC); });
    } catch (const SystemError& error) {
      EXPECT_EQ(group->rank(), 0);
      message = error.what();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("saving the model failed on rank 0, "
                                          "and therefore on rank " +
                                          std::to_string(group->rank())));
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("no room: No space left on device"));
    group->barrier().wait();
  });
}

TEST(RunOnRankZero, NotesWhoseErrorItWasUntilTheRankGoesOn) {
  const TestDirectory folder;
  const auto store = open_store("memory:");
  const auto body = [&](int rank) {
    Settings settings;
    settings.fault_file = folder.path() / std::to_string(rank);
    const auto group = make_group("shm", {.rank = rank, .size = 2},
                                  std::make_shared<World>(store, settings));
    EXPECT_THROW(run_on_rank_zero(*group, "saving the model",
                                  [] { throw Error("no room"); }),
                 Error);
    const std::optional<FaultNote> note = read_fault_note(settings.fault_file);
    EXPECT_EQ(note.has_value(), rank == 1);
    if (note) {
      EXPECT_EQ(*note, (FaultNote{.kind = FaultNote::Kind::kPeerError,
                                  .culprit = 0,
                                  .operation = "saving the model"}));
    }
    group->barrier().wait();
    EXPECT_EQ(read_fault_note(settings.fault_file), std::nullopt);
  };
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

TEST(RunOnAllRanks, IsFineOnAllOrAnErrorOnAllAndKeepsTheGroup) {
  run_ranks("shm", 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_NO_THROW(run_on_all_ranks(*group, "looking", [] {}));
    std::string message;
    try {
      run_on_all_ranks(*group, "looking", [&] {
        if (group->rank() > 0)
          throw InvalidArgument("not for " + std::to_string(group->rank()));
      });
    } catch (const InvalidArgument& error) {
      message = error.what();
      EXPECT_EQ(message, "not for " + std::to_string(group->rank()));
    } catch (const Error& error) {
      EXPECT_EQ(group->rank(), 0);
      message = error.what();
      EXPECT_THAT(message, HasSubstr("looking failed on rank 1, and therefore "
                                     "on rank 0 of 3:\nnot for 1"));
    }
    EXPECT_NE(message, "");
    group->barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep
