#include "src/base/report_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep {
namespace {

TEST(ReportText, NumbersAreGroupedByThousands) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1000), "1,000");
  EXPECT_EQ(with_thousands(1234567), "1,234,567");
  EXPECT_EQ(with_thousands(-123), "-123");
  EXPECT_EQ(with_thousands(-123456), "-123,456");
}

TEST(ReportText, SharesArePercentWithSoManyDecimals) {
  EXPECT_EQ(percent(0.91824, 2), "91.82 %");
  EXPECT_EQ(percent(1, 0), "100 %");
  EXPECT_EQ(percent(std::numeric_limits<double>::quiet_NaN(), 1), "-");
}

TEST(ReportText, ColumnsAreAsWideAsTheirWidestCellInCharacters) {
  EXPECT_EQ(right_aligned("µs", 4), "  µs");
  EXPECT_EQ(right_aligned("wide", 2), "wide");
  EXPECT_EQ(aligned_table({{"a", "µs"}, {"bcd", "1234"}}),
            "  a    µs\n"
            "bcd  1234\n");
  EXPECT_EQ(aligned_table({{"a", "b"}, {"---:", "---:"}},
                          {.left = "| ", .between = " | ", .right = " |"}),
            "|    a |    b |\n"
            "| ---: | ---: |\n");
}

TEST(ReportText, LeftAlignedColumnsLeaveNoBlanksAtTheEndOfALine) {
  EXPECT_EQ(aligned_table({{"what", "must be"}, {"x", "so", "<--"}},
                          {.left_aligned = 3}),
            "what  must be\n"
            "x     so       <--\n");
  EXPECT_EQ(
      aligned_table({{"class", "images"}, {"Bag", "5"}}, {.left_aligned = 1}),
      "class  images\n"
      "Bag         5\n");
}

}  // namespace
}  // namespace lockstep
