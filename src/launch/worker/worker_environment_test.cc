#include "src/launch/worker/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/testing/error_text.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/find_program.h"
#include "src/net/free_port.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

using Variables = std::vector<std::string>;

TEST(WorkerEnvironment, IsTorchrunsAndOurs) {
  const Variables inherited{"PATH=/bin",
                            "RANK=7",
                            "TORCHELASTIC_RUN_ID=a",
                            "TORCHELASTIC_ERROR_FILE=/outer.json",
                            "LOCKSTEP_PROGRESS_FD=9",
                            "RANKING=1"};
  EXPECT_THAT(
      worker_environment(inherited,
                         {.workers = 4,
                          .store_url = "tcp://127.0.0.1:5",
                          .token = "secret",
                          .master_port = 29500,
                          .notes_directory = "/tmp/a",
                          .threads = std::nullopt},
                         2),
      UnorderedElementsAre(
          "PATH=/bin", "RANKING=1", "RANK=2", "LOCAL_RANK=2", "WORLD_SIZE=4",
          "LOCAL_WORLD_SIZE=4", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
          "ROLE_RANK=2", "ROLE_WORLD_SIZE=4", "ROLE_NAME=default",
          "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_MAX_RESTARTS=0",
          "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_USE_AGENT_STORE=False",
          "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
          "TORCHELASTIC_ERROR_FILE=/tmp/a/error-2.json",
          "LOCKSTEP_FAULT_FILE=/tmp/a/fault-2.json", "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=29500", "LOCKSTEP_STORE=tcp://127.0.0.1:5",
          "LOCKSTEP_TOKEN=secret", "OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1",
          "LOCKSTEP_LINE_BUFFERED=1", "LOCKSTEP_BACKTRACE=1"));
}

TEST(WorkerEnvironment, ShowsOneGpuToEachWorkerByItsVirtualLocalRank) {
  JobEnvironment job{
      .workers = 2, .virtual_local_rank = true, .threads = std::nullopt};
  EXPECT_THAT(worker_environment({}, job, 1),
              AllOf(Contains("LOCAL_RANK=0"), Contains("RANK=1"),
                    Contains("CUDA_VISIBLE_DEVICES=1")));
  const Variables named{"CUDA_VISIBLE_DEVICES=5, GPU-7"};
  EXPECT_THAT(worker_environment(named, job, 0),
              Contains("CUDA_VISIBLE_DEVICES=5"));
  EXPECT_THAT(worker_environment(named, job, 1),
              AllOf(Contains("CUDA_VISIBLE_DEVICES=GPU-7"),
                    Not(Contains(named.front()))));
  EXPECT_THAT(worker_environment(Variables{"CUDA_VISIBLE_DEVICES="}, job, 1),
              Contains("CUDA_VISIBLE_DEVICES="));
  // To CUDA the list ends there.
  EXPECT_THAT(worker_environment(Variables{"CUDA_VISIBLE_DEVICES=-1"}, job, 1),
              Contains("CUDA_VISIBLE_DEVICES=-1"));
  EXPECT_THAT(error_text([&] {
                worker_environment(Variables{"CUDA_VISIBLE_DEVICES=3,-1,5"},
                                   job, 0);
              }),
              HasSubstr("CUDA_VISIBLE_DEVICES names 1"));
  job.workers = 3;
  EXPECT_THAT(error_text([&] { worker_environment(named, job, 0); }),
              HasSubstr("CUDA_VISIBLE_DEVICES names 2"));
}

TEST(WorkerEnvironment, LeavesTheGpusToTheProgramOtherwise) {
  const Variables named{"CUDA_VISIBLE_DEVICES=5,7"};
  EXPECT_THAT(worker_environment(named, {.workers = 2, .threads = {}}, 1),
              AllOf(Contains("LOCAL_RANK=1"), Contains(named.front())));
}

TEST(WorkerEnvironment, LeavesTheUsersHandlingOfNcclsErrorsAlone) {
  const Variables set{"TORCH_NCCL_ASYNC_ERROR_HANDLING=3"};
  EXPECT_THAT(worker_environment(set, {.threads = {}}, 0),
              AllOf(Contains(set.front()),
                    Not(Contains("TORCH_NCCL_ASYNC_ERROR_HANDLING=1"))));
}

TEST(WorkerEnvironment, CountsRanksOverAllHosts) {
  const Variables found = worker_environment({},
                                             {.workers = 2,
                                              .first_rank = 3,
                                              .world_size = 9,
                                              .group_rank = 1,
                                              .group_world_size = 4,
                                              .master_address = "10.0.0.1",
                                              .restarts = 2,
                                              .max_restarts = 5,
                                              .threads = std::nullopt},
                                             1);
  EXPECT_THAT(
      found,
      testing::IsSupersetOf(
          {"RANK=4", "LOCAL_RANK=1", "WORLD_SIZE=9", "LOCAL_WORLD_SIZE=2",
           "GROUP_RANK=1", "GROUP_WORLD_SIZE=4", "MASTER_ADDR=10.0.0.1",
           "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_MAX_RESTARTS=5"}));
}

TEST(WorkerEnvironment, IsTheUsersForAProgramThatHasRanksOfItsOwn) {
  EXPECT_THAT(
      worker_environment(Variables{"PATH=/bin", "RANK=7", "MASTER_PORT=1"},
                         {.workers_are_ranks = false,
                          .store_url = "tcp://127.0.0.1:5",
                          .token = "secret",
                          .threads = std::nullopt},
                         0),
      UnorderedElementsAre("PATH=/bin", "PYTHONUNBUFFERED=1",
                           "LOCKSTEP_LINE_BUFFERED=1", "LOCKSTEP_BACKTRACE=1"));
}

TEST(WorkerEnvironment, HasThreadsAsTorchrunDoesUnlessToldOtherwise) {
  const auto threads = [](const Variables& inherited, int workers,
                          std::optional<int> told) {
    JobEnvironment job;
    job.workers = workers;
    job.threads = told;
    Variables found;
    for (const std::string& variable : worker_environment(inherited, job, 0))
      if (variable.starts_with("OMP_NUM_THREADS=")) found.push_back(variable);
    return found;
  };
  EXPECT_THAT(threads({}, 1, {}), IsEmpty());
  EXPECT_THAT(threads({}, 2, {}), ElementsAre("OMP_NUM_THREADS=1"));
  EXPECT_THAT(threads({"OMP_NUM_THREADS=6"}, 2, {}),
              ElementsAre("OMP_NUM_THREADS=6"));
  EXPECT_THAT(threads({"OMP_NUM_THREADS=6"}, 1, 4),
              ElementsAre("OMP_NUM_THREADS=4"));
}

TEST(WorkerEnvironment, NamesTheLaunchersPluginsUnlessTheUserDid) {
  JobEnvironment job;
  const auto plugins = [&](const Variables& inherited) {
    Variables found;
    for (const std::string& variable : worker_environment(inherited, job, 0))
      if (variable.starts_with("LOCKSTEP_PLUGIN_PATH="))
        found.push_back(variable);
    return found;
  };
  EXPECT_THAT(plugins({}), IsEmpty());
  job.plugin_folder = "/ours";
  EXPECT_THAT(plugins({}), ElementsAre("LOCKSTEP_PLUGIN_PATH=/ours"));
  EXPECT_THAT(plugins({"LOCKSTEP_PLUGIN_PATH=/users"}),
              ElementsAre("LOCKSTEP_PLUGIN_PATH=/users"));
}

TEST(WorkerEnvironment, LeavesTheUsersPythonAlone) {
  EXPECT_THAT(worker_environment(Variables{"PYTHONUNBUFFERED="}, {}, 0),
              AllOf(Contains("PYTHONUNBUFFERED="),
                    Not(Contains("PYTHONUNBUFFERED=1"))));
}

TEST(CpuShare, ReadsAControlGroupsQuota) {
  EXPECT_EQ(parse_cpu_quota("200000 100000\n"), 2.0);
  EXPECT_EQ(parse_cpu_quota("50000 100000\n"), 0.5);
  for (const char* text :
       {"max 100000\n", "", "200000", "200000 ", "1 0", "-1 100000", "x y"})
    EXPECT_EQ(parse_cpu_quota(text), std::nullopt) << text;
}

TEST(CpuShare, CountsAtLeastOneCore) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_FALSE(allowed_cores().empty());
}

TEST(FindProgram, LooksAlongThePath) {
  EXPECT_EQ(find_program("sh", "/no/such:/bin:/usr/bin"), "/bin/sh");
  EXPECT_EQ(find_program("/bin/sh", ""), "/bin/sh");
}

TEST(FindProgram, TellsMissingFromForbidden) {
  const auto code = [](const char* name) {
    try {
      find_program(name, "/no/such:/etc");
    } catch (const CannotExecute& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
      return error.exit_code();
    }
    return 0;
  };
  EXPECT_EQ(code("no-such-program"), 127);
  EXPECT_EQ(code("/no/such/program"), 127);
  EXPECT_EQ(code(""), 127);
  EXPECT_EQ(code("passwd"), 126);
  EXPECT_EQ(code("/etc"), 126);
}

TEST(FindProgram, KnowsWhatWasMeant) {
  try {
    find_program("train.py", "/bin");
    FAIL() << "found train.py";
  } catch (const CannotExecute& error) {
    EXPECT_THAT(error.what(), HasSubstr("python3 train.py"));
  }
}

TEST(FreePort, IsOneThatCanBeBound) {
  const std::uint16_t port = find_free_port();
  EXPECT_GT(port, 1023);
  EXPECT_NO_THROW(check_port_is_free(port));
}

}  // namespace
}  // namespace lockstep
