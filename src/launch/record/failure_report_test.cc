#include "src/launch/record/failure_report.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(FailureReport, SaysWhatEachSignalMeans) {
  const auto cause_of = [](int signal) {
    return likely_cause({.status = {.signal = signal}});
  };
  EXPECT_THAT(cause_of(SIGSEGV), HasSubstr("invalid memory"));
  EXPECT_THAT(cause_of(SIGBUS), HasSubstr("/dev/shm may be full"));
  EXPECT_THAT(cause_of(SIGFPE), HasSubstr("divided an integer by zero"));
  EXPECT_THAT(cause_of(SIGILL), HasSubstr("this processor lacks"));
  EXPECT_THAT(cause_of(SIGABRT), HasSubstr("aborted"));
  EXPECT_EQ(cause_of(SIGTERM), "");
}

// Issue 43: with ulimit -s 64 a program crashes without a bug.
TEST(FailureReport, NamesASmallStackAsTheCauseOfACrash) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_STACK, &before), 0);
  rlimit small = before;
  small.rlim_cur = 64 * 1024;
  ASSERT_EQ(::setrlimit(RLIMIT_STACK, &small), 0);
  const std::string cause = likely_cause({.status = {.signal = SIGSEGV}});
  ::setrlimit(RLIMIT_STACK, &before);
  EXPECT_THAT(cause, HasSubstr("limited to 64 KiB (ulimit -s"));
}

}  // namespace
}  // namespace lockstep
