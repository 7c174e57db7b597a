#include "src/launch/output/stream_plan.h"

#include <gmock/gmock.h>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StreamChoice choice(std::string_view text) {
  return StreamChoice::parse("--tee", text);
}

TEST(StreamChoice, IsOneNumberForAllOrOnePerLocalRank) {
  EXPECT_EQ(choice("0").of(5), kNoStream);
  EXPECT_EQ(choice("1").of(0), kOutStream);
  EXPECT_EQ(choice("3").of(1), kBothStreams);
  EXPECT_EQ(choice("0:1,2:3").of(0), kOutStream);
  EXPECT_EQ(choice("0:1,2:3").of(1), kNoStream);
  EXPECT_EQ(choice("0:1,2:3").of(2), kBothStreams);
}

TEST(StreamChoice, RefusesOtherText) {
  for (const char* text : {"", "4", "-1", "out", "0:", ":1", "0:1,", "0:4",
                           "0:1,0:2", "x:1", "1,2", "0:1 1:2"})
    EXPECT_THAT(error_text([&] { choice(text); }), HasSubstr("as in 0:1,1:3"))
        << text;
}

TEST(StreamPlan, LogsAndShowsAllWithoutAChoice) {
  const StreamPlan plan;
  EXPECT_EQ(plan.logged(0), kBothStreams);
  EXPECT_EQ(plan.shown(0), kBothStreams);
}

TEST(StreamPlan, HidesWhatIsRedirectedUnlessItIsTeedToo) {
  const StreamPlan plan{.redirects = choice("0:3,1:1"),
                        .tee = choice("0:2,2:2"),
                        .shown_local_ranks = {}};
  EXPECT_EQ(plan.logged(0), kBothStreams);
  EXPECT_EQ(plan.shown(0), kErrStream);
  EXPECT_EQ(plan.logged(1), kOutStream);
  EXPECT_EQ(plan.shown(1), kErrStream);
  EXPECT_EQ(plan.logged(2), kErrStream);
  EXPECT_EQ(plan.shown(2), kBothStreams);
  EXPECT_EQ(plan.logged(3), kNoStream);
  EXPECT_EQ(plan.shown(3), kBothStreams);
}

TEST(StreamPlan, ShowsOnlyTheRanksOfTheFilter) {
  const StreamPlan plan{
      .redirects = {},
      .tee = {},
      .shown_local_ranks = parse_local_ranks("--local-ranks-filter", "1,3")};
  EXPECT_EQ(plan.shown(0), kNoStream);
  EXPECT_EQ(plan.shown(1), kBothStreams);
  EXPECT_EQ(plan.shown(3), kBothStreams);
  EXPECT_THAT(error_text([] { parse_local_ranks("--f", "1,x"); }),
              HasSubstr("--f is \"1,x\""));
  EXPECT_THAT(parse_local_ranks("--f", "2"), ElementsAre(2));
}

}  // namespace
}  // namespace lockstep
