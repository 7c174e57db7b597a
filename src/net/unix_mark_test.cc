#include "src/net/unix_mark.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace lockstep {
namespace {

TEST(UnixMark, IsFoundWhileItExists) {
  std::optional<UnixMark> mark(std::in_place);
  const UnixMark other;
  const std::string name = mark->name();
  EXPECT_NE(name, other.name());
  EXPECT_TRUE(is_marked_here(name));
  mark.reset();
  EXPECT_FALSE(is_marked_here(name));
  EXPECT_FALSE(is_marked_here(""));
  EXPECT_TRUE(is_marked_here(other.name()));
}

}  // namespace
}  // namespace lockstep
