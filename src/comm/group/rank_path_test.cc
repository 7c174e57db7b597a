#include <gmock/gmock.h>
#include <unistd.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/run_files.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(RankPath, DiffersBetweenRanksAndHoldsWhatThePatternAsksFor) {
  run_ranks("shm", 3, [](const std::shared_ptr<ProcessGroup>& group) {
    const std::string rank = std::to_string(group->rank());
    EXPECT_EQ(rank_path("logs/train-%r.log", *group),
              "logs/train-" + rank + ".log");
    EXPECT_EQ(rank_path("%h/%p-%r%%%r", *group),
              own_host_name() + "/" + std::to_string(::getpid()) + "-" + rank +
                  "%" + rank);
  });
}

TEST(RankPath, RefusesAPatternThatGivesSeveralRanksOneFile) {
  run_ranks("shm", 2, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const char* pattern : {"train.log", "train-%p-%h.log", "%%r"})
      EXPECT_THAT(error_text([&] { rank_path(pattern, *group); }),
                  HasSubstr("gives all 2 ranks one file"))
          << pattern;
  });
  run_ranks("shm", 1, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_EQ(rank_path("train.log", *group), "train.log");
  });
}

TEST(RankPath, RefusesUnknownLetters) {
  run_ranks("shm", 1, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const char* pattern : {"%t.log", "train-%"})
      EXPECT_THAT(error_text([&] { rank_path(pattern, *group); }),
                  HasSubstr("has a percent sign without one of"))
          << pattern;
  });
}

}  // namespace
}  // namespace lockstep
