#include "src/launch/record/failure_report.h"

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace lockstep
