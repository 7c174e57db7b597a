#include "src/comm/group/membership.h"

#include <gtest/gtest.h>

#include <string>

#include "src/base/testing/error_text.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {
namespace {

Settings settings_of(int rank, int world_size) {
  Settings settings;
  settings.rank = rank;
  settings.world_size = world_size;
  return settings;
}

std::string refusal(const InitOptions& options, const Settings& settings) {
  return error_text([&] { resolve_membership(options, settings); });
}

TEST(Membership, OfAProgramStartedAloneIsAWorldOfOne) {
  const Membership membership = resolve_membership({}, {});
  EXPECT_EQ(membership.rank, 0);
  EXPECT_EQ(membership.world_size, 1);
  EXPECT_EQ(membership.store_url, "memory:");
}

TEST(Membership, NamesTheVariableOfALaunchersStoreThatIsNone) {
  Settings settings = settings_of(0, 2);
  settings.store = "node-a:4000";
  EXPECT_EQ(refusal({}, settings)
                .find("the environment variable "
                      "LOCKSTEP_STORE: \"node-a:4000\""),
            0U);
}

TEST(Membership, PrefersTheLaunchersStoreAndLeavesTheMasterPortFree) {
  Settings settings = settings_of(0, 2);
  settings.master_address = "10.0.0.1";
  settings.master_port = 29500;
  settings.store = "tcp://127.0.0.1:4000";
  const Membership membership = resolve_membership({}, settings);
  EXPECT_EQ(membership.store_url, "tcp://127.0.0.1:4000");
  EXPECT_FALSE(membership.serves_store);
}

TEST(Membership, LetsRankZeroServeAtTheMasterPortWithoutALauncher) {
  for (const int rank : {0, 1}) {
    Settings settings = settings_of(rank, 2);
    settings.master_address = "localhost";
    settings.master_port = 29500;
    const Membership membership = resolve_membership({}, settings);
    EXPECT_EQ(membership.store_url, "tcp://localhost:29500");
    EXPECT_EQ(membership.serves_store, rank == 0);
  }
}

// The address comes from the environment, so brackets are gone already.
TEST(Membership, WritesAnIpv6MasterAddressInBrackets) {
  Settings settings = settings_of(1, 2);
  settings.master_address = "fd77::1";
  settings.master_port = 29500;
  const Membership membership = resolve_membership({}, settings);
  EXPECT_EQ(membership.store_url, "tcp://[fd77::1]:29500");
  const TcpEndpoint endpoint = parse_tcp_url(membership.store_url);
  EXPECT_EQ(endpoint.host, "fd77::1");
  EXPECT_EQ(endpoint.port, 29500);
}

TEST(Membership, TakesAnInitMethodWithRankAndWorldSize) {
  const Membership membership = resolve_membership(
      {.init_method = "tcp://localhost:1234", .world_size = 3, .rank = 0}, {});
  EXPECT_EQ(membership.store_url, "tcp://localhost:1234");
  EXPECT_TRUE(membership.serves_store);
  EXPECT_FALSE(
      resolve_membership(
          {.init_method = "file:///tmp/x", .world_size = 3, .rank = 0}, {})
          .serves_store);
}

Settings settings_started_by(StartedBy launcher, int rank, int world_size) {
  Settings settings = settings_of(rank, world_size);
  settings.launcher = launcher;
  return settings;
}

TEST(Membership, LeavesTheStoreOfMpirunsRanksToTheBootstrap) {
  for (const StartedBy mpirun : {StartedBy::kMpirun, StartedBy::kHydra}) {
    const Membership membership =
        resolve_membership({}, settings_started_by(mpirun, 1, 2));
    EXPECT_TRUE(membership.needs_bootstrap);
    EXPECT_EQ(membership.rank, 1);
    EXPECT_EQ(membership.world_size, 2);
    EXPECT_EQ(membership.store_url, "");
  }
  // A single rank, an address or an init method makes it unnecessary.
  EXPECT_FALSE(
      resolve_membership({}, settings_started_by(StartedBy::kMpirun, 0, 1))
          .needs_bootstrap);
  Settings told = settings_started_by(StartedBy::kMpirun, 0, 2);
  told.master_address = "localhost";
  told.master_port = 29500;
  EXPECT_FALSE(resolve_membership({}, told).needs_bootstrap);
  EXPECT_TRUE(resolve_membership({}, told).serves_store);
  EXPECT_FALSE(resolve_membership({.init_method = "file:///tmp/x"},
                                  settings_started_by(StartedBy::kMpirun, 0, 2))
                   .needs_bootstrap);
}

TEST(Membership, FindsRankZeroOfASlurmStepByItself) {
  Settings settings = settings_started_by(StartedBy::kSrun, 0, 2);
  settings.master_address = "node07";
  settings.master_port = 12499;
  settings.more_ports = {14502};
  const Membership membership = resolve_membership({}, settings);
  EXPECT_EQ(membership.store_url, "tcp://node07:12499");
  EXPECT_EQ(membership.more_ports, settings.more_ports);
  EXPECT_TRUE(membership.serves_store);
}

TEST(Membership, SaysWhichLauncherContradictsTheOptions) {
  EXPECT_NE(
      refusal({.world_size = 3}, settings_started_by(StartedBy::kSrun, 0, 2))
          .find("world_size is 3, but the environment says 2 (srun)"),
      std::string::npos);
}

TEST(Membership, RefusesWhatCannotWorkAndSaysWhatIsMissing) {
  Settings only_rank;
  only_rank.rank = 1;
  EXPECT_NE(refusal({}, only_rank).find("world_size is not"),
            std::string::npos);
  EXPECT_NE(refusal({}, settings_of(1, 2)).find("MASTER_ADDR is not set"),
            std::string::npos);
  EXPECT_NE(refusal({.init_method = "tcp://localhost:1"}, {})
                .find("needs world_size and rank"),
            std::string::npos);
  EXPECT_NE(refusal({.world_size = 2, .rank = 2}, {}).find("ranks count"),
            std::string::npos);
  EXPECT_NE(
      refusal({.rank = 0}, settings_of(1, 2)).find("the environment says 1"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep
