// The decisions for a job on several hosts. The test takes the launchers' part
// in a store of this process.
#include "src/launch/nodes/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/test_timeout.h"
#include "src/launch/worker/elastic_rounds.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CoordinatorTest : public testing::Test {
 protected:
  CoordinatorTest() {
    store_->set(kAgreementKey, to_bytes("agreed"), kTimeout);
  }

  std::unique_ptr<Coordinator> coordinate(
      int least, int most, int max_restarts = 0,
      std::chrono::nanoseconds end_timeout = 24h,
      std::chrono::nanoseconds last_call = 24h) const {
    return std::make_unique<Coordinator>(
        store_, CoordinatorOptions{.least = least,
                                   .most = most,
                                   .max_restarts = max_restarts,
                                   .join_timeout = 24h,
                                   .last_call = last_call,
                                   .end_timeout = end_timeout});
  }

  // The launcher on host `id` comes as the `index`-th of round `round`.
  void come(int round, int index, const std::string& id, int node_rank = -1) {
    const NodeCard card{.id = id,
                        .host = "host " + id,
                        .address = "127.0.0.1",
                        .node_rank = node_rank};
    set(RoundKeys(round).card(index), encode(card));
  }

  std::vector<std::string> hosts_of(int round) {
    const auto plan = decode<RoundPlan>(get(RoundKeys(round).plan()));
    std::vector<std::string> hosts;
    for (const NodeCard& node : plan.nodes) hosts.push_back(node.id);
    return hosts;
  }

  // Round 0, with the hosts "a" and "b".
  void begin_with_two() {
    come(0, 0, "a");
    come(0, 1, "b");
    hosts_of(0);
  }
  void end_both() {
    set(RoundKeys(0).ended("a"));
    set(RoundKeys(0).ended("b"));
  }

  void report(int round, const std::string& text, EndKind kind) {
    report_fault(*store_, RoundKeys(round).fault(),
                 {.node = "a", .text = text, .kind = kind}, kTimeout);
  }

  void end_from_outside() {
    set(std::string(kEndKey),
        encode(RoundFault{.text = "b is lost", .is_final = true}));
  }

  RoundVerdict verdict_of(int round) {
    return decode<RoundVerdict>(get(RoundKeys(round).verdict()));
  }

  void set(const std::string& key, std::string_view value = "") {
    store_->set(key, to_bytes(value), kTimeout);
  }
  std::string get(const std::string& key) {
    return to_text(store_->get(key, kTimeout));
  }
  void read_by(const std::vector<std::string>& ids) {
    for (const std::string& id : ids) set(read_key(id));
  }

  const std::shared_ptr<Store> store_ = open_store("memory:");
};

TEST_F(CoordinatorTest, RefusesALauncherWhoseRankAnotherOneHas) {
  const auto coordinator = coordinate(2, 2);
  come(0, 0, "a", 1);
  come(0, 1, "b", 1);
  EXPECT_THAT(get(RoundKeys(0).refusal("b")),
              HasSubstr("--node-rank is 1 here, and on host a too"));
  come(0, 2, "c", 0);
  EXPECT_THAT(hosts_of(0), ElementsAre("c", "a"));
}

TEST_F(CoordinatorTest, GivesTheRankOfALostLauncherToTheNextOne) {
  const auto coordinator = coordinate(2, 2);
  come(0, 0, "a", 1);
  set(RoundKeys(0).lost("a"));
  come(0, 1, "b", 1);
  come(0, 2, "c", 0);
  EXPECT_THAT(hosts_of(0), ElementsAre("c", "b"));
}

// A user starts a host again that died while the others gathered.
TEST_F(CoordinatorTest, TakesALauncherInThePlaceOfOneThatWasLostMeanwhile) {
  const auto coordinator = coordinate(2, 2, 1);
  come(0, 0, "a", 0);
  come(0, 1, "b", 1);
  hosts_of(0);
  end_both();
  report(0, "failed", EndKind::kByItself);
  EXPECT_EQ(verdict_of(0).next, "restart");
  come(1, 0, "b", 1);
  set(RoundKeys(1).lost("b"));
  come(1, 1, "b again", 1);
  come(1, 2, "a", 0);
  EXPECT_THAT(hosts_of(1), ElementsAre("a", "b again"));
}

TEST_F(CoordinatorTest, EndsTheRoundWhereAHostSaysOnlyThatItsWorkersEnded) {
  const auto coordinator = coordinate(2, 2);
  begin_with_two();
  report(0, "failed", EndKind::kByItself);
  set(RoundKeys(0).ended("b"));
  set(RoundKeys(0).ended("a"));
  EXPECT_EQ(verdict_of(0).fault.text, "failed");
  read_by({"a", "b"});
}

TEST_F(CoordinatorTest, KeepsTheFaultThatExplainsTheOthers) {
  const auto coordinator = coordinate(2, 2);
  begin_with_two();
  report(0, "lost a peer", EndKind::kConsequence);
  report(0, "failed", EndKind::kByItself);
  report(0, "failed later", EndKind::kByItself);
  report(0, "lost another peer", EndKind::kConsequence);
  end_both();
  EXPECT_EQ(verdict_of(0).fault.text, "failed");
  read_by({"a", "b"});
}

// As one launcher blames one of its own workers.
TEST_F(CoordinatorTest, KeepsTheFirstFaultOfAWorkerThatASignalEnded) {
  const auto coordinator = coordinate(2, 2);
  begin_with_two();
  report(0, "failed", EndKind::kByItself);
  report(0, "was killed", EndKind::kBySignal);
  report(0, "was killed later", EndKind::kBySignal);
  end_both();
  EXPECT_EQ(verdict_of(0).fault.text, "was killed");
  read_by({"a", "b"});
}

TEST(RoundFault, IsReplacedByALikelierCauseAndByAFinalOne) {
  const RoundFault peer{.kind = EndKind::kConsequence};
  const RoundFault worker{.kind = EndKind::kByItself};
  const RoundFault killed{.kind = EndKind::kBySignal};
  const RoundFault lost{.is_of_launcher = true};
  const RoundFault last{.kind = EndKind::kConsequence, .is_final = true};
  // Each one, and those that it replaces.
  const std::vector<std::pair<RoundFault, std::vector<RoundFault>>> table{
      {peer, {}},
      {worker, {peer}},
      {killed, {peer, worker}},
      {lost, {peer}},
      {last, {peer, worker, killed, lost}}};
  const auto among = [](const std::vector<RoundFault>& faults,
                        const std::string& text) {
    return std::ranges::any_of(
        faults, [&](const RoundFault& one) { return encode(one) == text; });
  };
  for (const auto& row : table)
    for (const auto& other : table)
      EXPECT_EQ(replaces(row.first, other.first),
                among(row.second, encode(other.first)))
          << encode(row.first) << " " << encode(other.first);
}

TEST_F(CoordinatorTest, BlamesALostHostForThePeersThatMissIt) {
  const auto coordinator = coordinate(2, 2);
  begin_with_two();
  report(0, "lost a peer", EndKind::kConsequence);
  set(RoundKeys(0).ended("a"));
  set(RoundKeys(0).lost("b"));
  EXPECT_THAT(verdict_of(0).fault.text,
              HasSubstr("the launcher on host b ended"));
  read_by({"a"});
}

TEST_F(CoordinatorTest, StartsNoWorkersBesideThoseThatDoNotEnd) {
  const auto coordinator = coordinate(2, 2, 5, 0s);
  begin_with_two();
  // Before the fault: the workers may take no time after it.
  set(RoundKeys(0).ended("a"));
  report(0, "failed", EndKind::kByItself);
  const RoundVerdict verdict = verdict_of(0);
  EXPECT_EQ(verdict.next, "fail");
  EXPECT_THAT(verdict.fault.text, AllOf(HasSubstr("failed; the workers on host "
                                                  "b did not end")));
  read_by({"a", "b"});
}

TEST_F(CoordinatorTest, DoesNotWaitForAHostThatIsLostBetweenTwoRounds) {
  const auto coordinator = coordinate(1, 2, 1);
  begin_with_two();
  end_both();
  report(0, "failed", EndKind::kByItself);
  EXPECT_EQ(verdict_of(0).next, "restart");
  come(1, 0, "a");
  set(RoundKeys(0).lost("b"));
  EXPECT_THAT(hosts_of(1), ElementsAre("a"));
}

TEST_F(CoordinatorTest, WaitsForTheHostsOfTheRoundBeforeDespiteAShortLastCall) {
  const auto coordinator = coordinate(2, 3, 1, 24h, 0s);
  begin_with_two();
  come(1, 0, "spare");
  end_both();
  report(0, "failed", EndKind::kByItself);
  EXPECT_EQ(verdict_of(0).next, "restart");
  come(1, 1, "a");
  EXPECT_THROW(store_->get(RoundKeys(1).plan(), 100ms), Timeout);
  come(1, 2, "b");
  EXPECT_THAT(hosts_of(1), ElementsAre("a", "b", "spare"));
}

// Its earlier connection, which has ended, belonged to round 0.
TEST_F(CoordinatorTest, TakesAHostAgainThatWasLostInTheRoundBefore) {
  const auto coordinator = coordinate(2, 2, 1);
  begin_with_two();
  set(RoundKeys(0).ended("a"));
  set(RoundKeys(0).lost("b"));
  EXPECT_EQ(verdict_of(0).next, "restart");
  come(1, 0, "b");
  come(1, 1, "a");
  EXPECT_THAT(hosts_of(1), ElementsAre("a", "b"));
}

// `lockstep run -H` sets the key where it has lost a host.
TEST_F(CoordinatorTest, EndsAJobThatGathersHostsWhenTold) {
  const auto coordinator = coordinate(2, 2, 1);
  come(0, 0, "a");
  end_from_outside();
  EXPECT_EQ(verdict_of(0).fault.text, "b is lost");
  read_by({"a"});
}

TEST_F(CoordinatorTest, EndsARunningJobWithoutARestartWhenTold) {
  const auto coordinator = coordinate(2, 2, 1);
  begin_with_two();
  end_from_outside();
  EXPECT_THAT(get(RoundKeys(0).fault()), HasSubstr("b is lost"));
  set(RoundKeys(0).ended("a"));
  set(RoundKeys(0).lost("b"));
  EXPECT_EQ(verdict_of(0).next, "fail");
  EXPECT_EQ(verdict_of(0).fault.text, "b is lost");
  read_by({"a"});
}

TEST_F(CoordinatorTest, EndsOnceLaunchersThatWaitForARestartHaveRead) {
  auto coordinator = coordinate(1, 2);
  begin_with_two();
  come(1, 0, "spare");
  for (const char* id : {"a", "b"}) {
    set(RoundKeys(0).done(id));
    set(RoundKeys(0).ended(id));
  }
  EXPECT_EQ(verdict_of(0).next, "finish");
  EXPECT_EQ(decode<RoundVerdict>(get(std::string(kOverKey))).next, "finish");
  read_by({"a", "b", "spare"});
  coordinator.reset();
}

// Hosts with one worker each.
class CoordinatorInPlace : public CoordinatorTest {
 protected:
  std::unique_ptr<Coordinator> coordinate(int min_ranks) const {
    return std::make_unique<Coordinator>(
        store_, CoordinatorOptions{.least = 2,
                                   .most = 2,
                                   .min_ranks = min_ranks,
                                   .join_timeout = 24h,
                                   .last_call = 24h,
                                   .end_timeout = 24h});
  }

  // As the launchers of `a` and `b` do, which have come.
  std::shared_ptr<Store> workers_store() {
    const auto plan = decode<RoundPlan>(get(RoundKeys(0).plan()));
    return open_store(plan.store_url,
                      {.token = plan.token, .deadline = kTimeout});
  }

  static std::string members(Store& store, int round) {
    return to_text(store.get(elastic_round_key(round), kTimeout));
  }

  void end_well(const std::string& id) {
    set(RoundKeys(0).done(id));
    set(RoundKeys(0).ended(id));
  }
};

TEST_F(CoordinatorInPlace, GoesOnWithoutALostHostAndTakesAnotherOneIn) {
  const auto coordinator = coordinate(1);
  come(0, 0, "a");
  come(0, 1, "b");
  const auto store = workers_store();
  EXPECT_EQ(members(*store, 1), "0 1");
  set(RoundKeys(0).lost("b"));
  EXPECT_EQ(members(*store, 2), "0");
  come(0, 2, "c");
  const auto plan = decode<RoundPlan>(get(RoundKeys(0).late_plan("c")));
  EXPECT_EQ(plan.first_rank, 1);
  EXPECT_EQ(plan.nodes.size(), 2);
  ElasticRounds rounds(store);
  EXPECT_THAT(rounds.join("c", 1).ids, ElementsAre(2));
  rounds.is_ready(2);
  EXPECT_EQ(members(*store, 3), "0 2");
  end_well("c");
  end_well("a");
  EXPECT_EQ(verdict_of(0).next, "finish");
  read_by({"a", "c"});
}

TEST_F(CoordinatorInPlace, TakesAHostThatIsTooManyInOnceAnotherOneIsLost) {
  const auto coordinator = coordinate(1);
  come(0, 0, "a");
  come(0, 1, "b");
  const auto store = workers_store();
  come(0, 2, "c");
  come(0, 3, "d");
  set(RoundKeys(0).lost("a"));
  // Beside b it could only begin with rank 2.
  const auto plan = decode<RoundPlan>(get(RoundKeys(0).late_plan("c")));
  EXPECT_EQ(plan.first_rank, 0);
  EXPECT_EQ(plan.group_rank, 0);
  set(RoundKeys(0).lost("c"));
  EXPECT_EQ(decode<RoundPlan>(get(RoundKeys(0).late_plan("d"))).first_rank, 0);
  end_well("b");
  end_well("d");
  EXPECT_EQ(verdict_of(0).next, "finish");
  read_by({"b", "d"});
}

// Its workers have come since the coordinator last looked.
TEST_F(CoordinatorInPlace, NoticesTheLossOfAHostThatCameLate) {
  const auto coordinator = coordinate(1);
  come(0, 0, "a");
  come(0, 1, "b");
  const auto store = workers_store();
  set(RoundKeys(0).lost("b"));
  come(0, 2, "c");
  get(RoundKeys(0).late_plan("c"));
  ElasticRounds rounds(store);
  rounds.join("c", 1);
  rounds.is_ready(2);
  EXPECT_EQ(members(*store, 3), "0 2");
  set(RoundKeys(0).lost("c"));
  EXPECT_EQ(members(*store, 4), "0");
  end_well("a");
  EXPECT_EQ(verdict_of(0).next, "finish");
  read_by({"a"});
}

TEST_F(CoordinatorInPlace, GivesThePlaceOfAHostWithoutRanksToAnotherOne) {
  const auto coordinator = coordinate(1);
  come(0, 0, "a", 0);
  come(0, 1, "b", 1);
  ElasticRounds rounds(workers_store());
  come(0, 2, "b again", 1);
  rounds.died(1, {.text = "rank 1 was killed"});
  end_well("b");
  EXPECT_EQ(get(RoundKeys(0).lost("b")), "no rank is left there");
  EXPECT_EQ(
      decode<RoundPlan>(get(RoundKeys(0).late_plan("b again"))).first_rank, 1);
  end_well("a");
  end_well("b again");
  EXPECT_EQ(verdict_of(0).next, "finish");
  read_by({"a", "b again"});
}

TEST_F(CoordinatorInPlace, EndsTheJobWhereTooFewRanksRemain) {
  const auto coordinator = coordinate(0);  // all
  come(0, 0, "a");
  come(0, 1, "b");
  workers_store();
  set(RoundKeys(0).lost("b"));
  get(RoundKeys(0).fault());  // it has noticed
  set(RoundKeys(0).ended("a"));
  EXPECT_EQ(verdict_of(0).next, "fail");
  EXPECT_THAT(verdict_of(0).fault.text,
              AllOf(HasSubstr("the launcher on host b"),
                    HasSubstr("1 of at least 2 ranks remain")));
  read_by({"a"});
}

TEST_F(CoordinatorInPlace, EndsTheJobWhereAHostEndsWithoutSayingWhy) {
  const auto coordinator = coordinate(1);
  come(0, 0, "a");
  come(0, 1, "b");
  workers_store();
  set(RoundKeys(0).ended("b"));
  set(RoundKeys(0).ended("a"));
  EXPECT_EQ(verdict_of(0).next, "fail");
  EXPECT_EQ(verdict_of(0).fault.text,
            "the workers on host b ended before the others");
  read_by({"a", "b"});
}

TEST_F(CoordinatorInPlace, NamesTheDeathThatTheOthersCouldNotSurvive) {
  const auto coordinator = coordinate(1);
  come(0, 0, "a");
  come(0, 1, "b");
  ElasticRounds rounds(workers_store());
  rounds.died(1, {.text = "rank 1 was killed", .exit_code = 137});
  end_well("b");
  report(0, "rank 0 lost a peer", EndKind::kConsequence);
  set(RoundKeys(0).ended("a"));
  EXPECT_EQ(verdict_of(0).fault.text, "rank 1 was killed");
  EXPECT_EQ(verdict_of(0).fault.exit_code, 137);
  read_by({"a", "b"});
}

TEST_F(CoordinatorInPlace, RefusesMoreMinRanksThanTheHostsHave) {
  const auto coordinator = coordinate(3);
  come(0, 0, "a");
  come(0, 1, "b");
  EXPECT_THAT(get(RoundKeys(0).refusal("a")),
              HasSubstr("--min-ranks is 3, but the hosts that came start 2"));
  EXPECT_EQ(verdict_of(0).fault.exit_code, 2);
  read_by({"a", "b"});
}

}  // namespace
}  // namespace lockstep
