#include "src/base/printable.h"

#include <gtest/gtest.h>

#include <array>

namespace lockstep {
namespace {

std::string shortened(std::string_view text) {
  std::array<char, 20> room{};
  return {room.data(), copy_shortened(text, room)};
}

TEST(Printable, ReplacesWhatMovesACursorOrBreaksALine) {
  EXPECT_EQ(printable("a\nb\rc\x1b[2Jd\x7f\t"), "a?b?c?[2Jd??");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a?b");
  EXPECT_EQ(printable("a\xc2\x9b"), "a??");  // CSI as one character
}

TEST(Printable, KeepsTextInUtf8) {
  const std::string text = "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";
  EXPECT_EQ(printable(text), text);
}

TEST(Printable, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("a\xff"
                      "b\x80"),
            "a?b?");
  EXPECT_EQ(printable("\xc3"), "?");
  EXPECT_EQ(printable("\xe2\x82z"), "??z");
  EXPECT_EQ(printable("\xc0\xaf \xe0\x80\x80"), "?? ???");  // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");              // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????");         // above U+10FFFF
}

TEST(IsUtf8, TakesControlCharactersButNoOtherBytes) {
  using namespace std::string_literals;
  for (const std::string& text :
       {""s, "a\nb"s, "\0"s, "\xc2\x9b"s, "\xc3\xa9"s})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (const std::string& text : {"\xff"s, "a\xc3"s, "\xc2"s, "\xed\xa0\x80"s})
    EXPECT_FALSE(is_utf8(text)) << text;
}

TEST(CopyShortened, KeepsTheBeginningAndTheEnd) {
  EXPECT_EQ(shortened("loop.cc:12"), "loop.cc:12");
  EXPECT_EQ(shortened("exactly twenty bytes"), "exactly twenty bytes");
  EXPECT_EQ(shortened("/home/user/project/loop.cc:123"),
            "/home/us...op.cc:123");
}

TEST(CopyShortened, SplitsNoCharacter) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "\xe2\x82\xac";
  const std::string cut = shortened(text);
  EXPECT_EQ(printable(cut), cut);
  EXPECT_EQ(cut,
            "\xe2\x82\xac\xe2\x82\xac...\xe2\x82\xac\xe2\x82\xac\xe2\x82"
            "\xac");
}

}  // namespace
}  // namespace lockstep
