// Equal lines of several ranks become one.
#include "src/launch/output/line_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class LineFolderTest : public testing::Test {
 protected:
  void out(int rank, std::string_view line) {
    folder_.add(OutputStream::kOut, rank, line, now_);
  }

  LineFolder::TimePoint now_{};
  std::vector<std::string> shown_;
  LineFolder folder_{
      4, [this](OutputStream stream, const std::string& line) {
        shown_.push_back((stream == OutputStream::kErr ? "err: " : "") + line);
      }};
};

TEST_F(LineFolderTest, ShowsALineOfAllRanksOnceAndAtOnce) {
  for (const int rank : {2, 0, 3}) out(rank, "ready");
  EXPECT_THAT(shown_, IsEmpty());
  out(1, "ready");
  EXPECT_THAT(shown_, ElementsAre("[ranks 0-3] ready"));
  EXPECT_TRUE(folder_.due().is_never());
}

TEST_F(LineFolderTest, ShowsALineOfSomeRanksOnceItHasWaited) {
  for (const int rank : {0, 1, 3}) out(rank, "ready");
  EXPECT_EQ(folder_.due().when(), now_ + LineFolder::kHold);
  now_ += LineFolder::kHold;
  folder_.release(now_);
  EXPECT_THAT(shown_, ElementsAre("[ranks 0-1,3] ready"));
  out(2, "ready");
  folder_.release_all();
  EXPECT_THAT(shown_, ElementsAre("[ranks 0-1,3] ready", "[rank 2] ready"));
}

TEST_F(LineFolderTest, KeepsTheOrderOfEachRanksLines) {
  out(0, "a");
  out(0, "b");
  // Rank 1 prints them in the other order: its b comes before its a.
  out(1, "b");
  out(1, "a");
  folder_.release_all();
  EXPECT_THAT(shown_, ElementsAre("[rank 0] a", "[ranks 0-1] b", "[rank 1] a"));
}

TEST_F(LineFolderTest, FoldsEqualLinesAfterOnesThatDiffer) {
  for (const int rank : {0, 1, 2}) {
    out(rank, "own " + std::to_string(rank));
    out(rank, "ready");
  }
  out(1, "more of 1");
  folder_.release_all();
  EXPECT_THAT(shown_,
              ElementsAre("[rank 0] own 0", "[rank 1] own 1", "[rank 2] own 2",
                          "[ranks 0-2] ready", "[rank 1] more of 1"));
}

TEST_F(LineFolderTest, LetsALineWaitThoughAnotherOnesTimeIsOver) {
  out(3, "own");
  now_ += LineFolder::kHold / 2;
  for (const int rank : {0, 1, 2}) out(rank, "ready");
  now_ += LineFolder::kHold / 2;
  folder_.release(now_);
  EXPECT_THAT(shown_, ElementsAre("[rank 3] own"));
  out(3, "ready");
  EXPECT_THAT(shown_, ElementsAre("[rank 3] own", "[ranks 0-3] ready"));
}

TEST_F(LineFolderTest, CountsALineThatARankRepeats) {
  for (const int rank : {0, 1})
    for (int time = 0; time < 2; ++time) out(rank, "again");
  folder_.release_all();
  EXPECT_THAT(shown_, ElementsAre("[ranks 0-1] again", "[ranks 0-1] again"));
}

TEST_F(LineFolderTest, FoldsNoLineOfOutputWithOneOfErrors) {
  out(0, "a");
  folder_.add(OutputStream::kErr, 1, "a", now_);
  folder_.release_all();
  EXPECT_THAT(shown_, ElementsAre("[rank 0] a", "err: [rank 1] a"));
}

TEST_F(LineFolderTest, HoldsAFewLinesOnly) {
  for (int i = 0; i < 1000; ++i) out(0, std::to_string(i));
  EXPECT_THAT(shown_, SizeIs(1000 - LineFolder::kMostLines));
  EXPECT_EQ(shown_.back(),
            "[rank 0] " + std::to_string(999 - LineFolder::kMostLines));
  out(1, "999");
  folder_.release_all();
  EXPECT_EQ(shown_.back(), "[ranks 0-1] 999");
}

}  // namespace
}  // namespace lockstep
