// How hydra carries the address of rank 0's store, and what a rank says where
// it does not.
#include "src/comm/group/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/fake_hydra.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

Bootstrap meet(const FakeHydra& hydra, std::chrono::duration<double> timeout) {
  Settings settings;
  settings.launcher = StartedBy::kHydra;
  settings.pmi_descriptor = hydra.descriptor();
  settings.rendezvous_timeout = timeout;
  return bootstrap_by_mpirun({.rank = 1, .world_size = 2}, settings);
}

template <class Failure>
std::string failure(const Answers& answers,
                    std::chrono::duration<double> timeout) {
  const FakeHydra hydra(answers);
  return error_text<Failure>([&] { meet(hydra, timeout); });
}

TEST(BootstrapByHydra, GivesTheAddressAndTheTokenOfRankZero) {
  const FakeHydra hydra(
      with("get", "cmd=get_result rc=0 value=tcp://node-a:1,secret\n"));
  const Bootstrap made = meet(hydra, kTimeout);
  EXPECT_EQ(made.store_url, "tcp://node-a:1");
  EXPECT_EQ(made.token, "secret");
}

// hydra ends the job, and so its connections, when a rank dies.
TEST(BootstrapByHydra, SaysThatAnotherRankMayHaveFailed) {
  for (const char* command : {"barrier_in", "get"}) {
    Answers answers = kAnswers;
    answers.erase(command);
    EXPECT_THAT(failure<NetworkError>(answers, kTimeout),
                AllOf(HasSubstr("rank 1 of 2 lost mpirun while the ranks met: "
                                "mpirun closed the connection"),
                      HasSubstr("\n  likely:  another rank has failed"),
                      HasSubstr("\n  next:    ")));
  }
}

TEST(BootstrapByHydra, SaysWhyPmiDoesNotServe) {
  Answers served_before = kAnswers;
  served_before.erase("init");
  for (const Answers& answers : {served_before, with("get", "cmd=none\n")})
    EXPECT_THAT(
        failure<InvalidArgument>(answers, kTimeout),
        AllOf(HasSubstr("rank 1 of 2, but neither the environment nor PMI"),
              HasSubstr("-genv MASTER_ADDR HOST")));
}

TEST(BootstrapByHydra, NamesTheRankAndTheNextStepInEachTimeout) {
  EXPECT_THAT(failure<Timeout>(with("barrier_in", ""), 1s),
              AllOf(HasSubstr("not all of the 2 ranks"),
                    HasSubstr("this is rank 1\n  next:    ")));
  for (const char* command :
       {"init", "get_maxes", "get_my_kvsname", "get", "finalize"})
    EXPECT_THAT(failure<Timeout>(with(command, ""), 50ms),
                AllOf(HasSubstr("mpirun did not answer rank 1 of 2 within"),
                      HasSubstr(" s: PMI did not answer \"cmd="),
                      HasSubstr("\n  next:    ")));
}

}  // namespace
}  // namespace lockstep
