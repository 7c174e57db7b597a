// What follows a death, without a process: the test carries out the calls.
#include "src/launch/launcher/elastic_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class HostOfThree : public testing::Test {
 protected:
  ElasticHost& begin(int min_ranks, int max_restarts) {
    JobEnvironment job{.workers = 3,
                       .max_restarts = max_restarts,
                       .store_url = store_->url(),
                       .token = "token",
                       .threads = std::nullopt};
    host_.emplace(
        ElasticHostOptions{.job = job, .min_ranks = min_ranks},
        ElasticHost::Calls{
            .tell = [this](const std::string& line) { told_ += line + "\n"; },
            .start =
                [this](int local_rank) {
                  if (cannot_start_) throw Error("no process");
                  started_.push_back(local_rank);
                },
            .end = [this](int local_rank) { ended_.push_back(local_rank); },
            .changed = [this] { ++changes_; },
            .lost_store = [this] { ++losses_; }});
    return *host_;
  }

  static WorkerFailure killed(int rank) {
    return {.rank = rank, .workers = 3, .status = {.signal = SIGKILL}};
  }

  std::optional<TcpStoreServer> store_{std::in_place, "127.0.0.1", 0, "token"};
  std::string told_;
  std::vector<int> started_;
  std::vector<int> ended_;
  int changes_ = 0;
  int losses_ = 0;
  bool cannot_start_ = false;
  std::optional<ElasticHost> host_;
};

TEST_F(HostOfThree, ReplacesTheDeadWhileRestartsAreLeft) {
  ElasticHost& host = begin(3, 1);
  EXPECT_TRUE(host.goes_on_without(1, killed(1)));
  EXPECT_THAT(started_, ElementsAre(1));
  EXPECT_EQ(host.id(1), 3);
  EXPECT_EQ(host.start(1), 1);
  EXPECT_FALSE(host.is_given_up(1));
  EXPECT_THAT(told_, HasSubstr("the job starts another in its place (restart 1 "
                               "of 1)"));
  EXPECT_FALSE(host.goes_on_without(1, killed(1))) << "no restart is left";
}

TEST_F(HostOfThree, GoesOnWithoutTheDeadWhileEnoughAreLeft) {
  ElasticHost& host = begin(2, 0);
  EXPECT_THAT(host.ranks(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(host.goes_on_without(1, killed(1)));
  EXPECT_THAT(started_, ElementsAre());
  EXPECT_TRUE(host.is_given_up(1));
  EXPECT_THAT(host.ranks(), ElementsAre(0, -1, 1));
  EXPECT_EQ(host.world_size(), 2);
  EXPECT_GT(changes_, 0);
  EXPECT_FALSE(host.goes_on_without(2, killed(2)));
}

TEST_F(HostOfThree, GoesOnWithoutTheDeadIfNoProcessCanBeStarted) {
  ElasticHost& host = begin(2, 5);
  cannot_start_ = true;
  EXPECT_TRUE(host.goes_on_without(0, killed(0)));
  EXPECT_THAT(told_, HasSubstr("no process"));
  EXPECT_TRUE(host.is_given_up(0));
}

TEST_F(HostOfThree, BlamesTheFirstDeathAfterWhichNoGroupFormed) {
  ElasticHost& host = begin(1, 0);
  EXPECT_EQ(host.unsurvived_death(), nullptr);
  WorkerFailure consequence = killed(0);
  consequence.kind = EndKind::kConsequence;
  EXPECT_TRUE(host.goes_on_without(0, consequence));
  EXPECT_TRUE(host.goes_on_without(2, killed(2)));
  ASSERT_NE(host.unsurvived_death(), nullptr);
  EXPECT_EQ(host.unsurvived_death()->rank, 2);
}

TEST_F(HostOfThree, EndsAReplacementThatComesAfterTheTraining) {
  ElasticHost& host = begin(3, 1);
  EXPECT_TRUE(host.goes_on_without(1, killed(1)));
  host.note_good_end(0);
  EXPECT_THAT(ended_, ElementsAre(1));
  host.tell_of_early_end();
  EXPECT_THAT(told_, HasSubstr("rank 0 ended with code 0 before"));
}

TEST_F(HostOfThree, SaysOnceThatItsStoreIsGone) {
  ElasticHost& host = begin(1, 1);
  store_.reset();
  EXPECT_FALSE(host.goes_on_without(1, killed(1)));
  EXPECT_FALSE(host.goes_on_without(2, killed(2)));
  EXPECT_TRUE(host.has_lost_store());
  EXPECT_EQ(losses_, 1);
  EXPECT_EQ(host.unsurvived_death(), nullptr);
  EXPECT_THAT(told_, HasSubstr("the job's store is gone"));
}

}  // namespace
}  // namespace lockstep
