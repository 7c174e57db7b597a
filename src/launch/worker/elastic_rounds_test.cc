#include "src/launch/worker/elastic_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/store/forwarding_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Next = ElasticRounds::Next;
using testing::ElementsAre;

// Whose connection ends after the first change of the state.
class LosesWrites : public ForwardingStore {
 public:
  explicit LosesWrites(std::shared_ptr<Store> store)
      : ForwardingStore(std::move(store)) {}
  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override {
    if (has_changed_) throw NetworkError("the connection ended");
    ForwardingStore::set(key, value, deadline);
  }
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) override {
    has_changed_ |= key == "elastic/state";
    return ForwardingStore::compare_and_set(key, expected, desired, deadline);
  }

 private:
  bool has_changed_ = false;
};

class ElasticRoundsTest : public testing::Test {
 protected:
  // What the workers see of round `number`.
  std::vector<int> published(int number) {
    return decode_elastic_round(
               number, to_text(store_->get(elastic_round_key(number), 1s)))
        .members;
  }

  void begin(int workers, int min_ranks, int max_restarts = 0) {
    ElasticRounds::begin(*store_, {.launchers = {{"here", workers}},
                                   .min_ranks = min_ranks,
                                   .max_restarts = max_restarts});
  }

  // Keeps the id of the worker that is started instead.
  Next died(ElasticRounds& rounds, int id) {
    const auto decision =
        rounds.died(id, {.text = "rank " + std::to_string(id) + " died"});
    replacement_ = decision.replacement;
    return decision.next;
  }

  bool is_over() { return !store_->get(kElasticOver, 1s).empty(); }

  std::shared_ptr<Store> store_ = open_store("memory:");
  int replacement_ = -1;
};

TEST_F(ElasticRoundsTest, BeginsWithAllWorkers) {
  begin(3, 3);
  ElasticRounds rounds(store_);
  EXPECT_THAT(published(1), ElementsAre(0, 1, 2));
}

TEST_F(ElasticRoundsTest, GoOnWithFewerRanksDownToTheLeast) {
  begin(4, 2);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 0), Next::kGoOn);
  EXPECT_THAT(published(2), ElementsAre(1, 2, 3));
  EXPECT_EQ(died(rounds, 2), Next::kGoOn);
  EXPECT_THAT(published(3), ElementsAre(1, 3));
  EXPECT_EQ(died(rounds, 1), Next::kEndJob);
  EXPECT_EQ(rounds.round().number, 3);
}

TEST_F(ElasticRoundsTest, TellWhetherTheOthersHaveFormedAGroupAfterADeath) {
  begin(3, 1);
  ElasticRounds rounds(store_);
  store_->set(elastic_formed_key(1), to_bytes("formed"), 1s);
  EXPECT_EQ(died(rounds, 2), Next::kGoOn);
  EXPECT_FALSE(rounds.has_formed_after(1));
  EXPECT_EQ(died(rounds, 1), Next::kGoOn);
  store_->set(elastic_formed_key(3), to_bytes("formed"), 1s);
  EXPECT_TRUE(rounds.has_formed_after(1));
  EXPECT_TRUE(rounds.has_formed_after(2));
  EXPECT_FALSE(rounds.has_formed_after(3));
}

TEST_F(ElasticRoundsTest, WaitForAReplacementWhereTooFewAreLeft) {
  begin(2, 2, 1);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 0), Next::kReplace);
  EXPECT_EQ(replacement_, 2);
  EXPECT_EQ(rounds.round().number, 1);
  rounds.is_ready(2);
  EXPECT_THAT(published(2), ElementsAre(1, 2));
  EXPECT_EQ(died(rounds, 1), Next::kEndJob);  // no restart is left
}

TEST_F(ElasticRoundsTest, TakeAReplacementInLater) {
  begin(3, 1, 2);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 1), Next::kReplace);
  EXPECT_THAT(published(2), ElementsAre(0, 2));
  rounds.is_ready(3);
  EXPECT_THAT(published(3), ElementsAre(0, 2, 3));
}

TEST_F(ElasticRoundsTest, ReplaceAReplacementThatDiesBeforeItIsReady) {
  begin(2, 2, 2);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 1), Next::kReplace);
  EXPECT_EQ(died(rounds, 2), Next::kReplace);
  EXPECT_EQ(replacement_, 3);
  rounds.is_ready(2);  // it is dead
  EXPECT_EQ(rounds.round().number, 1);
  rounds.is_ready(3);
  EXPECT_THAT(published(2), ElementsAre(0, 3));
}

// Issue 43: it named --max-restarts where a host was lost.
TEST_F(ElasticRoundsTest, SayWhyTooFewRemain) {
  const auto why_after = [&](int max_restarts, int deaths) {
    begin(3, 3, max_restarts);
    ElasticRounds rounds(store_);
    for (int i = 0; i < deaths; ++i) died(rounds, i);
    return rounds.died(deaths, {.text = "a rank died"}).why;
  };
  const std::string few = "2 of at least 3 ranks remain (--min-ranks), and ";
  EXPECT_EQ(why_after(0, 0),
            few + "no dead rank is replaced (--max-restarts is 0)");
  EXPECT_EQ(why_after(1, 1),
            few + "1 of 1 replacements are used (--max-restarts)");
  ElasticRounds::begin(
      *store_,
      {.launchers = {{"a", 2}, {"b", 1}}, .min_ranks = 3, .max_restarts = 5});
  ElasticRounds coordinator(store_);
  EXPECT_EQ(coordinator.lost("b", {.text = "b is lost"}).why,
            few + "the ranks of a lost host are not replaced");
}

TEST_F(ElasticRoundsTest, EndTheJobWhereNoMemberLives) {
  begin(1, 1, 5);
  ElasticRounds rounds(store_);
  const auto decision = rounds.died(0, {.text = "rank 0 died"});
  EXPECT_EQ(decision.next, Next::kEndJob);
  EXPECT_THAT(decision.why, testing::HasSubstr("from its last checkpoint"));
}

TEST_F(ElasticRoundsTest, EndTheJobByADeathAfterAWorkerHasEndedWell) {
  begin(3, 1, 5);
  ElasticRounds rounds(store_);
  EXPECT_FALSE(rounds.ended_well(0));  // no round was complete
  EXPECT_TRUE(is_over());
  EXPECT_EQ(died(rounds, 1), Next::kEndJob);
  EXPECT_EQ(rounds.round().number, 1);
}

TEST_F(ElasticRoundsTest, EndNoJobByTheEndOfAReplacementThatCameTooLate) {
  begin(2, 1, 1);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 1), Next::kReplace);
  const int late = replacement_;
  rounds.is_ready(late);  // a member that never joins
  rounds.ended_well(0);
  EXPECT_EQ(died(rounds, late), Next::kGoOn);
}

TEST_F(ElasticRoundsTest, EndTheJobByTheEndOfAReplacementThatHadJoined) {
  begin(2, 1, 1);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 1), Next::kReplace);
  const int id = replacement_;
  rounds.is_ready(id);
  store_->set(elastic_joined_key(id), to_bytes("joined"), 1s);
  rounds.ended_well(0);
  EXPECT_EQ(died(rounds, id), Next::kEndJob);
}

TEST_F(ElasticRoundsTest, EndTheJobWhenAMemberDiesAfterTheTraining) {
  begin(3, 1, 3);
  ElasticRounds rounds(store_);
  EXPECT_EQ(end_elastic_round(*store_, 1, kRoundComplete, 1s), kRoundComplete);
  EXPECT_EQ(died(rounds, 0), Next::kEndJob);
}

TEST_F(ElasticRoundsTest, ReplaceNoReplacementThatEndsAfterTheTraining) {
  begin(3, 2, 3);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 2), Next::kReplace);
  const int late = replacement_;
  rounds.is_ready(late);  // a member of a round that the others do not join
  end_elastic_round(*store_, rounds.round().number - 1, kRoundComplete, 1s);
  EXPECT_EQ(died(rounds, late), Next::kGoOn);
}

TEST_F(ElasticRoundsTest, LetNoMemberEndTheTrainingOfARoundInWhichOneDied) {
  begin(3, 1);
  ElasticRounds rounds(store_);
  EXPECT_EQ(died(rounds, 0), Next::kGoOn);
  EXPECT_EQ(end_elastic_round(*store_, 1, kRoundComplete, 1s), kRoundFailed);
  EXPECT_EQ(end_elastic_round(*store_, 2, kRoundComplete, 1s), kRoundComplete);
  EXPECT_EQ(died(rounds, 1), Next::kEndJob);
}

TEST_F(ElasticRoundsTest, EndTheJobWhereMembersGiveUpOnOneThatLives) {
  begin(3, 1, 5);
  ElasticRounds rounds(store_);
  store_->set(kElasticStalled, to_bytes("no round"), 1s);
  EXPECT_EQ(died(rounds, 0), Next::kEndJob);
}

// The launchers "a" and "b" of two hosts, with the workers 0, 1 and 2, 3.
class ElasticRoundsOfTwoHosts : public ElasticRoundsTest {
 protected:
  void begin(int min_ranks, int max_restarts = 0) {
    ElasticRounds::begin(*store_, {.launchers = {{"a", 2}, {"b", 2}},
                                   .min_ranks = min_ranks,
                                   .max_restarts = max_restarts});
  }
};

TEST_F(ElasticRoundsOfTwoHosts, DecideTogether) {
  begin(2);
  ElasticRounds a(store_), b(store_);
  EXPECT_EQ(died(a, 0), Next::kGoOn);
  EXPECT_EQ(died(b, 3), Next::kGoOn);
  EXPECT_THAT(published(3), ElementsAre(1, 2));
  EXPECT_EQ(died(a, 1), Next::kEndJob);
}

TEST_F(ElasticRoundsOfTwoHosts, ShareTheReplacementsThatAreLeft) {
  begin(2, 1);
  ElasticRounds a(store_), b(store_);
  EXPECT_EQ(died(b, 2), Next::kReplace);
  EXPECT_EQ(replacement_, 4);
  EXPECT_EQ(died(a, 1), Next::kGoOn);
  b.is_ready(4);
  EXPECT_THAT(published(4), ElementsAre(0, 3, 4));
  a.refresh();
  EXPECT_EQ(a.round().number, 4);
}

TEST_F(ElasticRoundsOfTwoHosts, GoOnWithoutALauncherThatIsLost) {
  begin(2, 5);
  ElasticRounds coordinator(store_), b(store_);
  const auto decision = coordinator.lost("b", {.text = "b is lost"});
  EXPECT_EQ(decision.next, Next::kGoOn);  // no other host starts its workers
  EXPECT_THAT(published(2), ElementsAre(0, 1));
  EXPECT_EQ(coordinator.unsurvived_death()->text, "b is lost");
  EXPECT_TRUE(coordinator.unsurvived_death()->is_launcher);
  store_->set(elastic_formed_key(2), to_bytes("formed"), 1s);
  EXPECT_FALSE(coordinator.unsurvived_death());
  // It is not dead, and ends its workers later.
  EXPECT_EQ(died(b, 2), Next::kGoOn);
  EXPECT_EQ(b.round().number, 2);
}

// As where it was admitted, and its connection ended before it had workers.
TEST_F(ElasticRoundsOfTwoHosts, TakeInNoWorkersOfALauncherThatIsLost) {
  begin(2);
  ElasticRounds coordinator(store_), c(store_), d(store_);
  EXPECT_EQ(coordinator.lost("c", {.text = "c is lost"}).next, Next::kGoOn);
  EXPECT_THAT(c.join("c", 2).ids, ElementsAre());
  EXPECT_THAT(d.join("d", 1).ids, ElementsAre(4));
}

TEST_F(ElasticRoundsOfTwoHosts, BeginNoRoundOnceADeathEndsTheJob) {
  begin(1, 1);
  ElasticRounds a(store_), b(store_);
  EXPECT_EQ(died(a, 0), Next::kReplace);
  b.lost("b", {});
  EXPECT_EQ(died(a, 1), Next::kEndJob);
  EXPECT_EQ(b.lost("a", {}).next, Next::kEndJob);
  a.is_ready(4);
  EXPECT_THAT(published(3), ElementsAre(1));
  b.refresh();
  EXPECT_EQ(b.round().number, 3);
}

TEST_F(ElasticRoundsOfTwoHosts, EndTheJobWhereTooFewRanksRemainOfAllHosts) {
  begin(3);
  ElasticRounds coordinator(store_);
  EXPECT_EQ(coordinator.lost("a", {}).next, Next::kEndJob);
}

TEST_F(ElasticRoundsOfTwoHosts, CompleteWhatALauncherThatEndedHasBegun) {
  begin(1);
  // Each write but the first is the last one of a launcher.
  for (int id = 0; id < 3; ++id) {
    LosesWrites store(store_);
    ElasticRounds ends(std::shared_ptr<Store>(&store, [](Store*) {}));
    EXPECT_THROW(ends.died(id, {}), NetworkError);
    ElasticRounds next(store_);
    next.is_ready(99);  // any change
    EXPECT_EQ(published(id + 2).size(), static_cast<std::size_t>(3 - id));
  }
}

}  // namespace
}  // namespace lockstep
