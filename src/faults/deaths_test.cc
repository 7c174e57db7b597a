#include "src/faults/deaths.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::steady_clock;

// Of a rank that ended by itself or, with `culprit`, because of that one.
Death death_of(int rank, std::optional<int> culprit = std::nullopt) {
  Death death{.id = rank, .when = steady_clock::now(), .end = {.rank = rank}};
  if (culprit) death.end.note = FaultNote{.culprit = *culprit};
  return death;
}

TEST(Deaths, KnowTheirCauseOnceOneIsNoConsequence) {
  Deaths deaths;
  deaths.add(death_of(1, 3));
  EXPECT_FALSE(deaths.know_their_cause());
  EXPECT_FALSE(deaths.cause_due().is_never());
  deaths.add(death_of(3));
  EXPECT_TRUE(deaths.know_their_cause());
  EXPECT_TRUE(deaths.cause_due().is_never());
  EXPECT_EQ(deaths.cause().id, 3);
}

TEST(Deaths, WaitForTheirCauseFromTheFirstOnAndNotForEver) {
  Deaths deaths;
  Death first = death_of(1, 3);
  const auto time = time_for_cause({{first.end}});
  first.when -= time / 2;
  deaths.add(first);
  const Deadline due = deaths.cause_due();
  deaths.add(death_of(2, 3));
  EXPECT_EQ(deaths.cause_due().when(), due.when());
  EXPECT_EQ(due.when(), first.when + time);

  Deaths late;
  Death long_ago = death_of(1, 3);
  long_ago.when -= time;
  late.add(long_ago);
  EXPECT_TRUE(late.know_their_cause());
  EXPECT_EQ(late.cause().id, 1);
}

TEST(Deaths, AreAwaitedNoLongerOnceTheOthersWereAskedToEnd) {
  Deaths deaths;
  deaths.add(death_of(0, 1));
  deaths.close();
  EXPECT_TRUE(deaths.cause_due().is_never());
  deaths.add(death_of(2, 1));
  EXPECT_TRUE(deaths.cause_due().is_never());
  EXPECT_TRUE(deaths.any());
  EXPECT_TRUE(deaths.has(0));
  EXPECT_FALSE(deaths.has(1));
}

}  // namespace
}  // namespace lockstep
