#include "src/comm/group/elastic_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/comm/group/round_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

class ElasticJobTest : public testing::Test {
 protected:
  void begin(int number, const std::string& members) {
    store_->set(elastic_round_key(number), to_bytes(members), 1s);
  }

  std::shared_ptr<Store> store_ = open_store("memory:");
};

TEST_F(ElasticJobTest, TellsThatTheWorkerWaits) {
  ElasticJob job(4, store_);
  EXPECT_FALSE(store_->get(elastic_ready_key(4), 1s).empty());
}

TEST_F(ElasticJobTest, FindsTheRankInTheRound) {
  begin(1, "0 1 2");
  ElasticJob job(2, store_);
  EXPECT_EQ(job.await_round(1s).number, 1);
  EXPECT_EQ(job.rank(), 2);
  EXPECT_TRUE(job.is_first_worker());
  EXPECT_FALSE(job.is_superseded());
  begin(2, "1 2");
  EXPECT_TRUE(job.is_superseded());
  EXPECT_EQ(job.await_round(1s).number, 2);
  EXPECT_EQ(job.rank(), 1);
}

TEST_F(ElasticJobTest, SkipsRoundsThatAreOver) {
  begin(1, "0 1 2");
  begin(2, "0 2");
  begin(3, "2 3");
  ElasticJob job(2, store_);
  EXPECT_THAT(job.await_round(1s).members, ElementsAre(2, 3));
}

TEST_F(ElasticJobTest, WaitsForARoundOfWhichTheWorkerIsAMember) {
  begin(1, "0 1");
  ElasticJob replacement(2, store_);
  EXPECT_THAT(error_text([&] { replacement.await_round(10ms); }),
              HasSubstr("no round after round 1 for worker 2"));
  EXPECT_FALSE(replacement.is_first_worker());
  begin(2, "0 2");
  EXPECT_EQ(replacement.await_round(1s).number, 2);
}

TEST_F(ElasticJobTest, SaysWhyNoRoundFollows) {
  begin(1, "0 1");
  ElasticJob job(1, store_);
  job.await_round(1s);
  store_->set(kElasticOver, to_bytes("worker 0 has ended"), 1s);
  EXPECT_THAT(error_text([&] { job.await_round(1s); }),
              HasSubstr("worker 0 has ended"));
}

TEST_F(ElasticJobTest, TellsTheLauncherThatAMemberGivesUp) {
  begin(1, "0 1");
  ElasticJob replacement(2, store_);
  EXPECT_THROW(replacement.await_round(10ms), Timeout);
  EXPECT_THROW(store_->get(kElasticStalled, 0ms), Timeout);
  ElasticJob member(1, store_);
  member.await_round(1s);
  EXPECT_THROW(member.await_round(10ms), Timeout);
  EXPECT_THAT(to_text(store_->get(kElasticStalled, 1s)),
              HasSubstr("for worker 1"));
}

TEST_F(ElasticJobTest, IsNoSignOfAHangWhereOthersGoOnOrTheStateIsMissing) {
  begin(1, "0 1");
  ElasticJob left_out(1, store_);
  left_out.await_round(1s);
  begin(2, "0 2");
  EXPECT_THROW(left_out.await_round(10ms), Timeout);
  ElasticJob replacement(2, store_);
  replacement.await_round(1s);
  EXPECT_THROW(replacement.await_round(10ms), Timeout);
  EXPECT_THROW(store_->get(kElasticStalled, 0ms), Timeout);
  replacement.joined();
  EXPECT_THROW(replacement.await_round(10ms), Timeout);
  EXPECT_FALSE(store_->get(kElasticStalled, 1s).empty());
}

TEST(RoundStore, EndsItsWaitsOnceTheNextRoundHasBegun) {
  const auto job_store = open_store("memory:");
  RoundStore round(job_store, 3);
  round.set("there", to_bytes("value"), 1s);
  EXPECT_EQ(to_text(job_store->get("elastic/3/there", 1s)), "value");
  job_store->set(elastic_round_key(4), to_bytes("0"), 1s);
  EXPECT_EQ(to_text(round.get("there", 1s, nullptr)), "value");
  EXPECT_THROW(round.get("missing", 10s, nullptr), NetworkError);
  round.be_formed();
  EXPECT_THROW(round.get("missing", 10ms, nullptr), Timeout);
}

TEST(RoundStore, EndsItsWaitsOnceAMemberHasEndedWell) {
  const auto job_store = open_store("memory:");
  RoundStore round(job_store, 3);
  job_store->set(kElasticOver, to_bytes("worker 0 has ended"), 1s);
  EXPECT_THAT(
      error_text<NetworkError>([&] { round.get("missing", 10s, nullptr); }),
      HasSubstr("worker 0 has ended"));
}

}  // namespace
}  // namespace lockstep
