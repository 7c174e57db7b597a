#include "src/comm/diagnosis/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <tuple>

#include "lockstep/comm/process_group.h"
#include "src/base/settings.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_timeout.h"
#include "src/base/text_file.h"
#include "src/comm/group/group_core.h"
#include "src/comm/rendezvous/world.h"
#include "src/comm/testing/scripted_backend.h"
#include "src/store/record_request.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

using Outcome = ScriptedBackend::Outcome;

auto in(std::chrono::seconds time) {
  return std::chrono::steady_clock::now() + time;
}

// A rank of a job of four. Its World's own watchdog has no reason to warn.
struct Rank {
  explicit Rank(int rank, std::string folder = "",
                std::shared_ptr<Store> shared = open_store("memory:"))
      : store(std::move(shared)),
        recorder(std::make_shared<Recorder>(std::move(folder))) {
    backend->late = {3, 1};
    pen = std::make_shared<GroupRecorder>(
        recorder, GroupIdentity{.rank = rank, .size = 4}, backend);
  }

  // Starts an operation.
  Work start(Operation operation = {.kind = OperationKind::kAllReduce,
                                    .sequence = 1}) {
    const auto number = pen->begin(operation);
    Work work = backend->start(operation);
    pen->started(number, operation, work);
    return work;
  }
  Work start_pending(Operation operation = {.kind = OperationKind::kAllReduce,
                                            .sequence = 1}) {
    backend->next = Outcome::kPending;
    return start(operation);
  }

  std::shared_ptr<Store> store;
  std::shared_ptr<Recorder> recorder;
  std::shared_ptr<ScriptedBackend> backend =
      std::make_shared<ScriptedBackend>();
  std::shared_ptr<GroupRecorder> pen;
};

TEST(StallWatch, SaysOnceWhoWaitsForWhom) {
  Rank rank(0);
  StallWatch watch(rank.recorder, 10s);
  const Work work = rank.start_pending();
  EXPECT_TRUE(watch.look(in(9s)).empty());
  EXPECT_LE(watch.next_look(), in(10s));
  const auto stalls = watch.look(in(11s));
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_EQ(describe(stalls[0], {{1, "on host b, asleep"}}),
            "all_reduce #1 (sum, 0 x float32) of group \"default\" on rank 0 "
            "has waited 11 s for rank 3 (which does not answer), rank 1 (on "
            "host b, asleep)");
  EXPECT_TRUE(watch.look(in(30s)).empty()) << "once an operation";
}

TEST(StallWatch, NamesAFewOfManyRanks) {
  Rank rank(0);
  rank.backend->late = {1, 2, 3, 4, 5};
  const Work work = rank.start_pending();
  const auto stalls = StallWatch(rank.recorder, 10s).look(in(11s));
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_THAT(describe(stalls[0], {}), EndsWith(" and 2 more"));
}

TEST(StallWatch, KeepsQuietAboutWhatIsOverOrNobodyWaitsFor) {
  Rank rank(0);
  StallWatch watch(rank.recorder, 10s);
  std::ignore = rank.start();  // completes at once
  const Work nobody_asks = rank.start_pending();
  rank.backend->complete();
  EXPECT_TRUE(watch.look(in(11s)).empty());
  rank.pen->leave();
  EXPECT_TRUE(watch.look(in(30s)).empty());
}

TEST(StallWatch, ReportsOnlyTheOldestOfAGroupsCollectives) {
  Rank rank(0);
  StallWatch watch(rank.recorder, 10s);
  const Work first = rank.start_pending();
  const Work second =
      rank.start_pending({.kind = OperationKind::kBarrier, .sequence = 2});
  const Work message = rank.start_pending(
      {.kind = OperationKind::kReceive, .peer = 2, .sequence = 1});
  const auto stalls = watch.look(in(11s));
  ASSERT_EQ(stalls.size(), 2u);
  EXPECT_THAT(stalls[0].operation, StartsWith("all_reduce #1"));
  EXPECT_THAT(stalls[1].operation, StartsWith("receive #1"));
}

TEST(StallWatch, TakesThePeerOfAMessageWhereTheBackendNamesNobody) {
  Rank rank(0);
  rank.backend->late = {};
  const Operation receive{
      .kind = OperationKind::kReceive, .peer = 2, .tag = 7, .sequence = 1};
  const auto number = rank.pen->begin(receive);
  rank.pen->awaited(number);
  const auto stalls = StallWatch(rank.recorder, 10s).look(in(11s));
  ASSERT_EQ(stalls.size(), 1u);
  EXPECT_THAT(describe(stalls[0], {}),
              HasSubstr("from rank 2, tag 7 of group \"default\" on rank 0 has "
                        "waited 11 s for rank 2 ("));
}

// The watchdog of rank 0; the test waits for its line.
struct SpeakingWatchdog {
  explicit SpeakingWatchdog(const Rank& rank)
      : watchdog(rank.recorder, rank.store,
                 {.timeout = 1ms,
                  .patience_for_answers = 2min,
                  .warn = [this](std::string_view line) {
                    said.set_value(std::string(line));
                  }}) {}

  std::promise<std::string> said;
  Watchdog watchdog;
};

TEST(Watchdog, SaysWhatTheMissingRankIsDoingInstead) {
  const std::shared_ptr<Store> store = open_store("memory:");
  Rank waiting(0, "", store);
  Rank busy(3, "", store);
  waiting.backend->late = {3};
  std::ignore = busy.start({.kind = OperationKind::kBarrier, .sequence = 9});
  const Watchdog answers(busy.recorder, store, {.timeout = kTimeout});
  const Work work = waiting.start_pending();
  SpeakingWatchdog speaks(waiting);
  EXPECT_THAT(
      speaks.said.get_future().get(),
      AllOf(StartsWith("all_reduce #1 (sum, 0 x float32) of group "
                       "\"default\" on rank 0 has waited "),
            MatchesRegex(".* for rank 3 \\(on host .*, busy with its own work "
                         "for .* s, after barrier #9 of group "
                         "\"default\"\\)")));
}

// Each must answer while it waits for an answer itself.
TEST(Watchdog, AnswersARankThatWaitsForIt) {
  const std::shared_ptr<Store> store = open_store("memory:");
  Rank first(0, "", store);
  Rank second(3, "", store);
  first.backend->late = {3};
  second.backend->late = {0};
  const Work one = first.start_pending();
  const Work other = second.start_pending();
  first.pen->awaited(0);
  second.pen->awaited(0);
  SpeakingWatchdog watches_first(first);
  SpeakingWatchdog watches_second(second);
  EXPECT_THAT(watches_first.said.get_future().get(),
              HasSubstr(" for rank 3 (on host"));
  EXPECT_THAT(watches_second.said.get_future().get(),
              HasSubstr("in all_reduce #1 of group \"default\" for "));
}

TEST(Watchdog, WritesTheRecordWhenAsked) {
  const TestDirectory folder;
  Rank rank(3, folder.path());
  std::ignore = rank.start();
  const Watchdog watchdog(rank.recorder, rank.store, {.timeout = kTimeout});
  rank.store->get(listening_key(3), kTimeout);
  for (int time = 0; time < 2; ++time) {
    // Rank 2 does not listen, so the request does not wait for it.
    EXPECT_THAT(request_records(*rank.store, std::vector<int>{2, 3}, kTimeout),
                testing::ElementsAre(3));
    const auto file = folder / "rank-3.json";
    const RankRecord record = decode_record(read_text_file(file, 1 << 20));
    EXPECT_EQ(record.reason, "request");
    EXPECT_EQ(record.operations.size(), 1u);
    std::filesystem::remove(file);
  }
}

TEST(Watchdog, LearnsTheNameThatAllRanksOfTheJobKnow) {
  const auto store = open_store("memory:");
  const auto learned = [](const Rank& rank, int number) {
    const Watchdog watchdog(rank.recorder, rank.store, {.timeout = kTimeout});
    rank.store->get(listening_key(number), kTimeout);
    return rank.recorder->snapshot("request").job;
  };
  const std::string name = learned(Rank(0, "", store), 0);
  EXPECT_EQ(learned(Rank(1, "", store), 1), name);
  EXPECT_NE(learned(Rank(1), 1), name) << "of another job's store";
  EXPECT_NE(name, "");
}

TEST(Watchdog, EndsAtOnceWhateverIsPending) {
  Rank rank(0);
  const Work work = rank.start_pending();
  const Watchdog watchdog(rank.recorder, rank.store, {.timeout = kTimeout});
}

TEST(Watchdog, IsThereOnceARankOfSeveralHasCalledSomething) {
  for (const int size : {1, 2}) {
    const std::shared_ptr<Store> store = open_store("memory:");
    const auto world = std::make_shared<World>(store, Settings{});
    ProcessGroup group(
        std::make_unique<GroupCore>(std::make_shared<ScriptedBackend>(),
                                    GroupIdentity{.size = size}, 1min, world));
    group.barrier().wait();
    if (size == 2) {
      EXPECT_EQ(to_text(store->get(listening_key(0), kTimeout)), "yes");
    }
  }
}

}  // namespace
}  // namespace lockstep
