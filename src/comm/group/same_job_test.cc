#include "src/comm/group/same_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>

#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Group = std::shared_ptr<ProcessGroup>;

TEST(SameJob, IsAcceptedOnEveryRank) {
  run_ranks("reference", 3, [](const Group& group) {
    const std::vector<JobField> job{{"--lr", "0.1"}, {"--model", ""}};
    EXPECT_NO_THROW(check_same_job(*group, job));
  });
}

TEST(SameJob, NamesTheFieldsAndTheirValuesByRankOnEveryRank) {
  std::mutex mutex;
  std::set<std::string> texts;
  run_ranks("reference", 4, [&](const Group& group) {
    const int rank = group->rank();
    const std::vector<JobField> job{
        {"--model", "mlp"},
        {"--lr", rank == 2 ? "0.001" : "0.1"},
        {"--seed", std::to_string(rank % 3)},
        {"--output", "a\nb" + std::string(rank == 3 ? "c" : "")}};
    const auto text =
        error_text<DifferentJobs>([&] { check_same_job(*group, job); });
    const std::lock_guard lock(mutex);
    texts.insert(text);
  });
  ASSERT_EQ(texts.size(), 1U) << "every rank has the same message";
  EXPECT_THAT(
      *texts.begin(),
      AllOf(
          HasSubstr("jobs: --lr is 0.1 on ranks 0, 1, 3 and 0.001 on rank 2\n"),
          HasSubstr("--seed is 0 on ranks 0, 3, 1 on rank 1 and 2 on rank "
                    "2\n"),
          HasSubstr("--output is a?b on ranks 0, 1, 2 and a?bc on rank 3\n"),
          Not(HasSubstr("--model"))));
}

TEST(SameJob, NamesAFieldThatARankDoesNotHave) {
  run_ranks("reference", 2, [](const Group& group) {
    std::vector<JobField> job{{"command", "lockstep train"}};
    if (group->rank() == 1) job.push_back({"--json", "yes"});
    EXPECT_THAT(
        error_text<DifferentJobs>([&] { check_same_job(*group, job); }),
        HasSubstr("jobs: --json is not given on rank 0 and yes on rank 1\n"));
  });
}

}  // namespace
}  // namespace lockstep
