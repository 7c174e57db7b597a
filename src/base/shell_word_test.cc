#include "src/base/shell_word.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep {
namespace {

TEST(ShellWord, HasQuotesWhereItNeedsThem) {
  EXPECT_EQ(shell_word("--nnodes=2:4"), "--nnodes=2:4");
  EXPECT_EQ(shell_word("./a b"), "'./a b'");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  for (const char* text : {"~", "a*", "a;b", "#", "a\nb", "{1,2}", "[a]"})
    EXPECT_EQ(shell_word(text), "'" + std::string(text) + "'");
}

TEST(ShellWord, IsSeparatedFromTheNextByABlank) {
  const std::vector<std::string> words{"sh", "-c", "echo $RANK"};
  EXPECT_EQ(command_line(words), "sh -c 'echo $RANK'");
}

}  // namespace
}  // namespace lockstep
