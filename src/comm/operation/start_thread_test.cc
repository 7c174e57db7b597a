#include "src/comm/operation/start_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

// Issue 43: with `ulimit -u 6` a rank warned 350 times.
TEST(AMissingThread, IsWarnedOfOnceInAProcess) {
  testing::internal::CaptureStderr();
  for (const char* group : {"first", "second", "first"})
    warn_of_missing_thread(group, std::runtime_error("no more threads"));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("no thread for group \"first\": no more threads"),
            std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

}  // namespace
}  // namespace lockstep
