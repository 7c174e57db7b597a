#include "src/comm/rendezvous/group_fault.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(AFaultInAText, IsReadBackWhateverSurroundsIt) {
  const Fault fault{FaultKind::kPeerGone, 12, 1'234'567'890'123,
                    "rank 3 lost rank 12\n  next:    read its log"};
  const auto found = fault_in("rank 3 is gone: " + as_reason(fault) +
                              "\n  next:    read rank 3's log");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, fault.kind);
  EXPECT_EQ(found->culprit, fault.culprit);
  EXPECT_EQ(found->sequence, fault.sequence);
  EXPECT_EQ(found->reason, fault.reason);
  EXPECT_EQ(fault_in(as_reason({}))->reason, "");
}

TEST(AFaultInAText, KeepsTheEndsOfALongReason) {
  const std::string text =
      as_reason({FaultKind::kAborted, 1, 2,
                 "begin " + std::string(100'000, 'x') + " end"});
  EXPECT_LT(text.size(), 1600u);
  const auto found = fault_in(text);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->reason.starts_with("begin x"));
  EXPECT_TRUE(found->reason.ends_with("x end"));
}

TEST(AFaultInAText, IsNotFoundInOtherTextsAndInAPartOfIt) {
  const std::string whole = as_reason({FaultKind::kGaveUp, 1, 2, "late"});
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(fault_in(std::string_view(whole).substr(0, length)));
  for (const char* text : {"", "rank 1 left", "\x03\x02", "\x02\x03",
                           "\x02"
                           "9 1 2 x\x03",
                           "\x02"
                           "-1 1 2 x\x03",
                           "\x02"
                           "1 one 2 x\x03",
                           "\x02"
                           "1 1 -2 x\x03"})
    EXPECT_FALSE(fault_in(text)) << text;
}

}  // namespace
}  // namespace lockstep
