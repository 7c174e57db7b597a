#include "src/launch/launcher/elastic_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Next = ElasticRounds::Next;
using testing::ElementsAre;

class ElasticRoundsTest : public testing::Test {
 protected:
  // What the workers see of round `number`.
  std::vector<int> published(int number) {
    return decode_elastic_round(
               number, to_text(store_->get(elastic_round_key(number), 1s)))
        .members;
  }

  bool is_over() { return !store_->get(kElasticOver, 1s).empty(); }

  std::shared_ptr<Store> store_ = open_store("memory:");
};

TEST_F(ElasticRoundsTest, BeginsWithAllWorkers) {
  ElasticRounds rounds(store_, {.workers = 3, .min_ranks = 3});
  EXPECT_THAT(published(1), ElementsAre(0, 1, 2));
}

TEST_F(ElasticRoundsTest, GoOnWithFewerRanksDownToTheLeast) {
  ElasticRounds rounds(store_, {.workers = 4, .min_ranks = 2});
  EXPECT_EQ(rounds.died(0), Next::kGoOn);
  EXPECT_THAT(published(2), ElementsAre(1, 2, 3));
  EXPECT_EQ(rounds.died(2), Next::kGoOn);
  EXPECT_THAT(published(3), ElementsAre(1, 3));
  EXPECT_EQ(rounds.died(1), Next::kEndJob);
  EXPECT_EQ(rounds.round().number, 3);
}

TEST_F(ElasticRoundsTest, TellWhetherTheOthersHaveFormedAGroupAfterADeath) {
  ElasticRounds rounds(store_, {.workers = 3, .min_ranks = 1});
  store_->set(elastic_formed_key(1), to_bytes("formed"), 1s);
  EXPECT_EQ(rounds.died(2), Next::kGoOn);
  EXPECT_FALSE(rounds.has_formed_after(1));
  EXPECT_EQ(rounds.died(1), Next::kGoOn);
  store_->set(elastic_formed_key(3), to_bytes("formed"), 1s);
  EXPECT_TRUE(rounds.has_formed_after(1));
  EXPECT_TRUE(rounds.has_formed_after(2));
  EXPECT_FALSE(rounds.has_formed_after(3));
}

TEST_F(ElasticRoundsTest, WaitForAReplacementWhereTooFewAreLeft) {
  ElasticRounds rounds(store_,
                       {.workers = 2, .min_ranks = 2, .max_restarts = 1});
  EXPECT_EQ(rounds.died(0), Next::kReplace);
  EXPECT_EQ(rounds.add(), 2);
  EXPECT_EQ(rounds.round().number, 1);
  rounds.is_ready(2);
  EXPECT_THAT(published(2), ElementsAre(1, 2));
  EXPECT_EQ(rounds.died(1), Next::kEndJob);  // no restart is left
}

TEST_F(ElasticRoundsTest, TakeAReplacementInLater) {
  ElasticRounds rounds(store_,
                       {.workers = 3, .min_ranks = 1, .max_restarts = 2});
  EXPECT_EQ(rounds.died(1), Next::kReplace);
  rounds.add();
  EXPECT_THAT(published(2), ElementsAre(0, 2));
  rounds.is_ready(3);
  EXPECT_THAT(published(3), ElementsAre(0, 2, 3));
}

TEST_F(ElasticRoundsTest, ReplaceAReplacementThatDiesBeforeItIsReady) {
  ElasticRounds rounds(store_,
                       {.workers = 2, .min_ranks = 2, .max_restarts = 2});
  EXPECT_EQ(rounds.died(1), Next::kReplace);
  rounds.add();
  EXPECT_EQ(rounds.died(2), Next::kReplace);
  EXPECT_EQ(rounds.add(), 3);
  rounds.is_ready(2);  // it is dead
  EXPECT_EQ(rounds.round().number, 1);
  rounds.is_ready(3);
  EXPECT_THAT(published(2), ElementsAre(0, 3));
}

TEST_F(ElasticRoundsTest, EndTheJobWhereNoMemberLives) {
  ElasticRounds rounds(store_,
                       {.workers = 1, .min_ranks = 1, .max_restarts = 5});
  EXPECT_EQ(rounds.died(0), Next::kEndJob);
}

TEST_F(ElasticRoundsTest, EndTheJobByADeathAfterAWorkerHasEndedWell) {
  ElasticRounds rounds(store_,
                       {.workers = 3, .min_ranks = 1, .max_restarts = 5});
  rounds.ended_well(0);
  EXPECT_TRUE(is_over());
  EXPECT_EQ(rounds.died(1), Next::kEndJob);
  EXPECT_EQ(rounds.round().number, 1);
}

TEST_F(ElasticRoundsTest, EndNoJobByTheEndOfAReplacementThatCameTooLate) {
  ElasticRounds rounds(store_,
                       {.workers = 2, .min_ranks = 1, .max_restarts = 1});
  EXPECT_EQ(rounds.died(1), Next::kReplace);
  const int late = rounds.add();
  rounds.is_ready(late);  // a member that never joins
  rounds.ended_well(0);
  EXPECT_EQ(rounds.died(late), Next::kGoOn);
}

TEST_F(ElasticRoundsTest, EndTheJobByTheEndOfAReplacementThatHadJoined) {
  ElasticRounds rounds(store_,
                       {.workers = 2, .min_ranks = 1, .max_restarts = 1});
  EXPECT_EQ(rounds.died(1), Next::kReplace);
  const int id = rounds.add();
  rounds.is_ready(id);
  store_->set(elastic_joined_key(id), to_bytes("joined"), 1s);
  rounds.ended_well(0);
  EXPECT_EQ(rounds.died(id), Next::kEndJob);
}

TEST_F(ElasticRoundsTest, EndTheJobWhenAMemberDiesAfterTheTraining) {
  ElasticRounds rounds(store_,
                       {.workers = 3, .min_ranks = 1, .max_restarts = 3});
  EXPECT_EQ(end_elastic_round(*store_, 1, kRoundComplete, 1s), kRoundComplete);
  EXPECT_EQ(rounds.died(0), Next::kEndJob);
}

TEST_F(ElasticRoundsTest, ReplaceNoReplacementThatEndsAfterTheTraining) {
  ElasticRounds rounds(store_,
                       {.workers = 3, .min_ranks = 2, .max_restarts = 3});
  EXPECT_EQ(rounds.died(2), Next::kReplace);
  const int late = rounds.add();
  rounds.is_ready(late);  // a member of a round that the others do not join
  end_elastic_round(*store_, rounds.round().number - 1, kRoundComplete, 1s);
  EXPECT_EQ(rounds.died(late), Next::kGoOn);
}

TEST_F(ElasticRoundsTest, LetNoMemberEndTheTrainingOfARoundInWhichOneDied) {
  ElasticRounds rounds(store_, {.workers = 3, .min_ranks = 1});
  EXPECT_EQ(rounds.died(0), Next::kGoOn);
  EXPECT_EQ(end_elastic_round(*store_, 1, kRoundComplete, 1s), kRoundFailed);
  EXPECT_EQ(end_elastic_round(*store_, 2, kRoundComplete, 1s), kRoundComplete);
  EXPECT_EQ(rounds.died(1), Next::kEndJob);
}

}  // namespace
}  // namespace lockstep
