#include "src/base/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "src/base/testing/error_text.h"
#include "src/base/testing/lookup_in.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

RankEnvironment environment_of(const Variables& variables) {
  return read_rank_environment(lookup_in(variables));
}

std::string refusal(const Variables& variables) {
  return error_text([&] { environment_of(variables); });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

// OpenMPI 4.1's variables for the last of 4 ranks on 2 hosts.
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "3957325825"}};

// Slurm's variables for the last of 5 ranks on 3 hosts.
const Variables kSrun{{"SLURM_JOB_ID", "71"},
                      {"SLURM_STEP_ID", "2"},
                      {"SLURM_PROCID", "4"},
                      {"SLURM_NTASKS", "5"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                      {"SLURM_STEP_NODELIST", "gpu[07-08],login"}};

TEST(RankEnvironment, IsEmptyWhereNobodyStartedRanks) {
  const RankEnvironment found = environment_of({});
  EXPECT_EQ(found.launcher, StartedBy::kNone);
  EXPECT_FALSE(found.rank || found.world_size || found.master_address);
}

TEST(RankEnvironment, TakesAnIpv6MasterAddressWithAndWithoutBrackets) {
  for (const char* address : {"fd77::1", "[fd77::1]"})
    EXPECT_EQ(environment_of({{"MASTER_ADDR", address}}).master_address,
              "fd77::1");
}

TEST(RankEnvironment, RecognisesMpirun) {
  const RankEnvironment found = environment_of(kMpirun);
  EXPECT_EQ(found.launcher, StartedBy::kMpirun);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.world_size, 4);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_world_size, 2);
  EXPECT_EQ(found.job, "mpirun 3957325825");
  EXPECT_FALSE(found.master_address || found.master_port);
}

TEST(RankEnvironment, RecognisesTheOtherMpiruns) {
  const RankEnvironment found = environment_of({{"PMI_RANK", "1"},
                                                {"PMI_SIZE", "2"},
                                                {"PMI_FD", "6"},
                                                {"MPI_LOCALRANKID", "0"},
                                                {"MPI_LOCALNRANKS", "1"}});
  EXPECT_EQ(found.launcher, StartedBy::kHydra);
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.world_size, 2);
  EXPECT_EQ(found.local_rank, 0);
  EXPECT_EQ(found.local_world_size, 1);
  EXPECT_EQ(found.pmi_descriptor, 6);
}

TEST(RankEnvironment, LeavesPmiToThoseRanksThatHydraStarted) {
  const Variables pmi{{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}, {"PMI_FD", "6"}};
  EXPECT_FALSE(environment_of(with(kSrun, pmi)).pmi_descriptor);
  const Variables agreed{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "6"}};
  EXPECT_FALSE(environment_of(with(kMpirun, agreed)).pmi_descriptor);
}

TEST(RankEnvironment, RecognisesSrunAndWhereItsRankZeroIs) {
  const RankEnvironment found = environment_of(kSrun);
  EXPECT_EQ(found.launcher, StartedBy::kSrun);
  EXPECT_EQ(found.rank, 4);
  EXPECT_EQ(found.world_size, 5);
  EXPECT_EQ(found.local_rank, 0);
  EXPECT_EQ(found.local_world_size, 1);
  EXPECT_EQ(found.master_address, "gpu07");
  EXPECT_EQ(found.job, "slurm 71.2");
}

TEST(RankEnvironment, CountsTheRanksOfEachHostOfASlurmStep) {
  for (const auto& [node, ranks] : std::map<int, int>{{0, 2}, {1, 2}, {2, 1}})
    EXPECT_EQ(
        environment_of(with(kSrun, {{"SLURM_NODEID", std::to_string(node)}}))
            .local_world_size,
        ranks)
        << node;
}

TEST(RankEnvironment, GivesEachSlurmStepAPortOfItsOwnBelowTheKernels) {
  const auto port = [](const std::string& job, const std::string& step) {
    return environment_of(
               with(kSrun, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}}))
        .master_port.value();
  };
  EXPECT_EQ(port("71", "2"), 12000 + 71 * 7 + 2);
  EXPECT_NE(port("71", "2"), port("71", "3"));
  EXPECT_NE(port("71", "2"), port("72", "2"));
  for (const char* job : {"0", "9999", "4294967295"}) {
    EXPECT_GE(port(job, "0"), 12000);
    EXPECT_LT(port(job, "0"), 28000);
  }
}

TEST(RankEnvironment, TriesOtherPortsWhereTheFirstIsDerived) {
  const RankEnvironment found = environment_of(kSrun);
  std::set<int> ports(found.more_ports.begin(), found.more_ports.end());
  ports.insert(found.master_port.value());
  EXPECT_EQ(ports.size(), 8u);
  EXPECT_GE(*ports.begin(), 12000);
  EXPECT_LT(*ports.rbegin(), 28000);
  // The job that has the same first port, and the next one.
  const auto of_job = [](const std::string& job) {
    return environment_of(with(kSrun, {{"SLURM_JOB_ID", job}}));
  };
  EXPECT_EQ(of_job("16071").more_ports, found.more_ports);
  EXPECT_NE(of_job("16071").job, found.job);
  for (const int port : of_job("72").more_ports)
    EXPECT_FALSE(ports.contains(port));
}

TEST(RankEnvironment, LetsMasterVariablesOverruleSlurms) {
  const RankEnvironment found = environment_of(
      with(kSrun, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "99"}}));
  EXPECT_EQ(found.master_address, "10.0.0.1");
  EXPECT_EQ(found.master_port, 99);
  EXPECT_TRUE(found.more_ports.empty());
}

TEST(RankEnvironment, LeavesTorchrunsAgentItsPort) {
  const Variables by_hand{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(environment_of(by_hand).master_port, 29500);
  EXPECT_TRUE(environment_of(by_hand).more_ports.empty());
  const Variables agents =
      with(by_hand, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(environment_of(agents).master_port, 25500);
  EXPECT_EQ(environment_of(agents).more_ports.size(), 7u);
  EXPECT_EQ(
      environment_of(with(agents, {{"MASTER_PORT", "29501"}})).master_port,
      25501);
  EXPECT_EQ(
      environment_of(with(agents, {{"MASTER_PORT", "65535"}})).master_port,
      13535);
  EXPECT_EQ(
      environment_of(with(agents, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))
          .master_port,
      29500);
  // A job of another launcher within torchrun's.
  Variables within = with(kSrun, agents);
  within.erase("RANK");
  within.erase("WORLD_SIZE");
  EXPECT_EQ(environment_of(within).master_port, 29500);
}

TEST(RankEnvironment, TellsTorchrunsJobsApart) {
  const Variables torchrun{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(environment_of(torchrun).job, "");
  EXPECT_EQ(
      environment_of(with(torchrun, {{"TORCHELASTIC_RUN_ID", "a-7"}})).job,
      "torchrun a-7");
  // Agents of two jobs without an id, whose derived ports are the same.
  const auto at_port = [&](const std::string& port) {
    return environment_of(with(
        torchrun,
        {{"MASTER_PORT", port}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  };
  EXPECT_EQ(at_port("29500").job, "torchrun at port 29500");
  EXPECT_EQ(at_port("29500").more_ports, at_port("45500").more_ports);
  EXPECT_NE(at_port("29500").job, at_port("45500").job);
  // A job of another launcher within torchrun's.
  EXPECT_EQ(environment_of(with(kSrun, {{"TORCHELASTIC_RUN_ID", "a-7"}})).job,
            environment_of(kSrun).job);
}

TEST(RankEnvironment, TakesABatchScriptOrAShellForNoRank) {
  Variables batch = kSrun;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(environment_of(batch).launcher, StartedBy::kNone);
  for (const char* special : {"4294967290", "4294967291", "4294967292"})
    EXPECT_EQ(
        environment_of(with(kSrun, {{"SLURM_STEP_ID", special}})).launcher,
        StartedBy::kNone);
}

TEST(RankEnvironment, BelievesTheInnermostLauncher) {
  const Variables torchrun{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}};
  EXPECT_EQ(environment_of(with(with(kSrun, kMpirun), torchrun)).rank, 0);
  EXPECT_EQ(environment_of(with(with(kSrun, kMpirun), torchrun)).launcher,
            StartedBy::kTorchrun);
  EXPECT_EQ(environment_of(with(kSrun, kMpirun)).rank, 3);
  // An mpirun whose agents srun started, and srun with its own PMI.
  EXPECT_EQ(
      environment_of(with(kSrun, {{"PMI_RANK", "7"}, {"PMI_SIZE", "8"}})).rank,
      7);
  EXPECT_EQ(environment_of(with(kSrun, {{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}}))
                .launcher,
            StartedBy::kSrun);
}

TEST(RankEnvironment, RefusesTwoMpirunsThatContradictEachOther) {
  EXPECT_THAT(refusal(with(kMpirun, {{"PMI_RANK", "2"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK is 3, but PMI_RANK is 2"));
  EXPECT_THAT(refusal(with(kMpirun, {{"PMI_SIZE", "5"}})),
              HasSubstr("OMPI_COMM_WORLD_SIZE is 4, but PMI_SIZE is 5"));
}

// Left over in a shell or a container, they would make mpirun's processes train
// alone.
TEST(RankEnvironment, RefusesAWorldThatIsSmallerThanMpiruns) {
  const Variables alone{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_THAT(refusal(with(kMpirun, alone)),
              HasSubstr("WORLD_SIZE is 1, but mpirun started 4 processes "
                        "(OMPI_COMM_WORLD_SIZE)"));
  EXPECT_THAT(refusal(with({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}, alone)),
              HasSubstr("mpirun started 3 processes (PMI_SIZE)"));
  for (const char* launched : {"TORCHELASTIC_RUN_ID", "LOCKSTEP_STORE"})
    EXPECT_EQ(refusal(with(with(kMpirun, alone), {{launched, "x"}})),
              "no error");
  // A script on each of mpirun's hosts starts several ranks.
  EXPECT_EQ(refusal(with(kMpirun, {{"RANK", "7"}, {"WORLD_SIZE", "8"}})),
            "no error");
}

TEST(RankEnvironment, RefusesARankBeyondTheWorldByItsName) {
  EXPECT_THAT(refusal(with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "4"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK must be at most 3"));
  EXPECT_THAT(refusal(with(kSrun, {{"SLURM_PROCID", "5"}})),
              HasSubstr("SLURM_PROCID is 5 but SLURM_NTASKS is 5"));
  EXPECT_THAT(refusal(with(kSrun, {{"SLURM_PROCID", "first"}})),
              HasSubstr("SLURM_PROCID is \"first\""));
}

TEST(FirstHost, UnderstandsSlurmsLists) {
  const std::map<std::string, std::string> lists{
      {"node1", "node1"},
      {"node1,node2", "node1"},
      {"node[3-5]", "node3"},
      {"node[007,009-011],gpu1", "node007"},
      {"rack[1-2]n[30-31]", "rack1n30"},
      {"a[2-3]-ib0,b", "a2-ib0"},
      {"[5-6]", "5"},
      {"", ""},
      {"cut[1-", "cut1"},
      {"cut[", "cut"},
  };
  for (const auto& [list, host] : lists) EXPECT_EQ(first_host(list), host);
}

}  // namespace
}  // namespace lockstep
