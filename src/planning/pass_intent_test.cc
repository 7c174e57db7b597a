#include "src/planning/pass_intent.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(PassIntent, IsToReduceOutsideOfNoSync) {
  PassIntent intent;
  EXPECT_EQ(intent.backward_begins(), PassKind::kReduced);
  intent.forward_begins();
  EXPECT_EQ(intent.backward_begins(), PassKind::kReduced);
}

TEST(PassIntent, IsWhatTheScopeOfTheForwardPassSays) {
  PassIntent intent;
  intent.enter_no_sync();
  intent.forward_begins();
  intent.leave_no_sync();
  EXPECT_EQ(intent.backward_begins(), PassKind::kLocal);
  EXPECT_EQ(intent.backward_begins(), PassKind::kReduced);

  intent.forward_begins();
  intent.enter_no_sync();
  EXPECT_EQ(intent.backward_begins(), PassKind::kReduced);
  EXPECT_EQ(intent.backward_begins(), PassKind::kLocal);
}

TEST(PassIntent, IsToReduceIfOneOfSeveralForwardPassesSaysSo) {
  PassIntent intent;
  for (const bool first : {true, false}) {
    if (first) intent.forward_begins();
    intent.enter_no_sync();
    intent.forward_begins();
    intent.leave_no_sync();
    if (!first) intent.forward_begins();
    EXPECT_EQ(intent.backward_begins(), PassKind::kReduced) << first;
  }
}

TEST(PassIntent, StaysLocalUntilTheOutermostScopeIsLeft) {
  PassIntent intent;
  intent.enter_no_sync();
  intent.enter_no_sync();
  intent.leave_no_sync();
  EXPECT_EQ(intent.here(), PassKind::kLocal);
  intent.leave_no_sync();
  EXPECT_EQ(intent.here(), PassKind::kReduced);
}

}  // namespace
}  // namespace lockstep
