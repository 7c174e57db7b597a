#include "src/launch/output/output_tagger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "src/launch/output/line_tail.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A tagger and its output lines.
struct Tagged {
  explicit Tagged(std::string tag = "")
      : tagger(std::move(tag),
               [this](std::string_view line) { lines.emplace_back(line); }) {}

  std::vector<std::string> lines;
  OutputTagger tagger;
};

std::vector<std::string> lines_of(std::string_view text) {
  Tagged tagged;
  tagged.tagger.add(text);
  tagged.tagger.finish();
  return tagged.lines;
}

TEST(OutputTagger, PutsTheTagBeforeEveryLine) {
  Tagged tagged("[rank 1] ");
  tagged.tagger.add("one\n\ntwo\n");
  EXPECT_THAT(tagged.lines,
              ElementsAre("[rank 1] one", "[rank 1] ", "[rank 1] two"));
}

TEST(OutputTagger, HoldsALineBackUntilItsNewlineComes) {
  Tagged tagged("> ");
  tagged.tagger.add("he");
  tagged.tagger.add("llo");
  EXPECT_THAT(tagged.lines, IsEmpty());
  tagged.tagger.add("\nwor");
  EXPECT_THAT(tagged.lines, ElementsAre("> hello"));
  tagged.tagger.finish();
  EXPECT_THAT(tagged.lines, ElementsAre("> hello", "> wor"));
  tagged.tagger.finish();
  EXPECT_EQ(tagged.lines.size(), 2u);
}

TEST(OutputTagger, BreaksALineThatHasBegun) {
  Tagged tagged("> ");
  tagged.tagger.add("preparing: ");
  tagged.tagger.break_line();
  EXPECT_THAT(tagged.lines, ElementsAre("> preparing: "));
  tagged.tagger.add("\ndone\n");
  EXPECT_THAT(tagged.lines, ElementsAre("> preparing: ", "> done"));
  tagged.tagger.break_line();
  tagged.tagger.add("\n");
  EXPECT_THAT(tagged.lines, ElementsAre("> preparing: ", "> done", "> "));
}

TEST(OutputTagger, CutsALongLineAndLosesNothing) {
  const std::string text(3 * OutputTagger::kMaxLineBytes + 7, 'x');
  const auto lines = lines_of(text + "\nshort\n");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].size(), OutputTagger::kMaxLineBytes);
  EXPECT_EQ(lines[0] + lines[1] + lines[2] + lines[3], text);
  EXPECT_EQ(lines[4], "short");
}

TEST(OutputTagger, ALineThatJustFitsIsNotCut) {
  for (const std::size_t times : {1, 2}) {
    const std::string text(times * OutputTagger::kMaxLineBytes, 'x');
    EXPECT_EQ(lines_of(text + "\n").size(), times);
    EXPECT_EQ(lines_of(text).size(), times);
  }
}

TEST(OutputTagger, CutsBetweenCharactersNotInThem) {
  std::string text;
  while (text.size() < 2 * OutputTagger::kMaxLineBytes) text += "━";
  const auto lines = lines_of(text + "\n");
  ASSERT_GT(lines.size(), 1u);
  std::string all;
  for (const std::string& line : lines) {
    EXPECT_EQ(line.size() % 3, 0u);
    all += line;
  }
  EXPECT_EQ(all, text);
}

TEST(OutputTagger, CutsWhatIsNoUtf8Anywhere) {
  const std::string text(2 * OutputTagger::kMaxLineBytes, '\x80');
  EXPECT_EQ(lines_of(text + "\n").size(), 2u);
}

TEST(OutputTagger, PassesBinaryGarbageThrough) {
  const std::string garbage("\0\xff\x01\0", 4);
  EXPECT_THAT(lines_of(garbage + "\n" + garbage),
              ElementsAre(garbage, garbage));
}

TEST(OutputTagger, KeepsOfALineWhatATerminalWouldShow) {
  EXPECT_THAT(lines_of("10 %\r50 %\r100 %\n"), ElementsAre("100 %"));
  EXPECT_THAT(lines_of("dos\r\nlines\r\n"), ElementsAre("dos", "lines"));
  EXPECT_THAT(lines_of("10 %\r50 %\r\n"), ElementsAre("50 %"));
}

TEST(OutputTagger, IsNotFilledByABarThatNeverEndsItsLine) {
  Tagged tagged;
  for (int i = 0; i < 10'000; ++i) tagged.tagger.add("working on it…\r");
  EXPECT_THAT(tagged.lines, IsEmpty());
  tagged.tagger.add("done\n");
  EXPECT_THAT(tagged.lines, ElementsAre("done"));
  tagged.tagger.add(std::string(5 * OutputTagger::kMaxLineBytes, '\r') + "\n");
  EXPECT_THAT(tagged.lines, ElementsAre("done", ""));
}

TEST(OutputTagger, TellsTheLastWholeStateOfAProgressBar) {
  Tagged tagged;
  EXPECT_EQ(tagged.tagger.overwritten(), "");
  tagged.tagger.add("a line\n50 % of one state");
  EXPECT_EQ(tagged.tagger.overwritten(), "");
  tagged.tagger.add("\r");
  EXPECT_EQ(tagged.tagger.overwritten(), "50 % of one state");
  tagged.tagger.add("60");
  EXPECT_EQ(tagged.tagger.overwritten(), "50 % of one state");
  tagged.tagger.add(" %\r\r");
  EXPECT_EQ(tagged.tagger.overwritten(), "60 %");
  tagged.tagger.add("100 %\n\r\r");
  EXPECT_EQ(tagged.tagger.overwritten(), "");
  EXPECT_THAT(tagged.lines, ElementsAre("a line", "100 %"));
}

TEST(OutputTagger, GivesTheSameLinesHoweverTheBytesArrive) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < 90'000; ++i)
    text += random() % 4000 == 0 ? '\n' : "ab\r\xc3\xa4"[random() % 5];
  text += std::string(20'000, 'y') + "\n";
  const auto expected = lines_of(text);
  Tagged tagged;
  for (std::size_t place = 0; place < text.size();) {
    const std::size_t count = random() % 300;
    tagged.tagger.add(std::string_view(text).substr(place, count));
    place += count;
  }
  tagged.tagger.finish();
  EXPECT_EQ(tagged.lines, expected);
}

TEST(LineTail, KeepsTheLastLinesAndTheStartOfEach) {
  LineTail tail;
  for (int i = 0; i < 40; ++i) tail.add("line " + std::to_string(i));
  ASSERT_EQ(tail.lines().size(), LineTail::kLines);
  EXPECT_EQ(tail.lines().front(), "line 10");
  EXPECT_EQ(tail.lines().back(), "line 39");
  tail.add(std::string(100'000, 'x'));
  EXPECT_EQ(tail.lines().back().size(), LineTail::kLineBytes);
}

}  // namespace
}  // namespace lockstep
