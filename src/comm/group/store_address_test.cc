#include "src/comm/group/store_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The error of rank `rank` of four, two per host, for the address `host`.
std::string fault_of(const std::string& host, int rank,
                     Settings settings = {}) {
  settings.launcher = StartedBy::kTorchrun;
  settings.rank = rank;
  if (!settings.local_rank) settings.local_rank = rank % 2;
  if (!settings.local_world_size) settings.local_world_size = 2;
  Membership membership{.rank = rank, .world_size = 4};
  membership.store_url = "tcp://" + host + ":29500";
  return error_text([&] { check_store_address(membership, settings); });
}

TEST(TheStoresAddress, IsRefusedWhereItIsLoopbackAndTheRanksAreOnSeveralHosts) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "localhost", "[::1]"})
    for (const int rank : {0, 1, 2, 3}) {
      const std::string fault = fault_of(host, rank);
      EXPECT_THAT(fault, HasSubstr("rank " + std::to_string(rank) +
                                   " of 4 cannot reach rank 0's store"));
      EXPECT_THAT(fault, HasSubstr("set MASTER_ADDR to"));
    }
}

TEST(TheStoresAddress, IsRefusedWithPortZeroForSeveralRanks) {
  Membership membership{.rank = 1, .world_size = 2};
  membership.store_url = "tcp://127.0.0.1:0";
  EXPECT_THAT(error_text([&] { check_store_address(membership, {}); }),
              HasSubstr("next:    set MASTER_PORT"));
  membership = {.rank = 0, .world_size = 1, .store_url = membership.store_url};
  EXPECT_EQ(error_text([&] { check_store_address(membership, {}); }),
            "no error");
}

TEST(TheStoresAddress, IsNamedWithItsVariableWhereRankZeroDoesNotKnowIt) {
  Membership membership{.rank = 0, .world_size = 2};
  membership.store_url = "tcp://no-such-host.invalid:29500";
  membership.serves_store = true;
  EXPECT_THAT(
      error_text<NetworkError>([&] { check_store_address(membership, {}); }),
      AllOf(HasSubstr("host \"no-such-host.invalid\""),
            HasSubstr("(MASTER_ADDR, or the init method, gives it)")));
  Settings bound;  // the name is that of a proxy
  bound.store_bind = "0.0.0.0";
  EXPECT_EQ(error_text([&] { check_store_address(membership, bound); }),
            "no error");
}

TEST(TheStoresAddress, MayBeLoopbackOnOneHost) {
  Settings on_one_host;
  on_one_host.local_world_size = 4;
  EXPECT_EQ(fault_of("127.0.0.1", 3, on_one_host), "no error");
  Settings bound;
  bound.store_bind = "127.0.0.1";
  EXPECT_EQ(fault_of("127.0.0.1", 3, bound), "no error");
}

TEST(TheStoresAddress, MayBeAnyOther) {
  for (const int rank : {0, 3})
    EXPECT_EQ(fault_of("192.0.2.1", rank), "no error");
}

// A host's own name is loopback on Debian. "127.1" is such a name: only the
// resolver maps it to loopback.
TEST(TheStoresAddress, MayBeANameThatMeansLoopbackOnRankZerosHost) {
  for (const int rank : {0, 1}) EXPECT_EQ(fault_of("127.1", rank), "no error");
  for (const int rank : {2, 3})
    EXPECT_THAT(fault_of("127.1", rank), HasSubstr("loopback"));
  Settings shows_one_gpu;  // --virtual-local-rank
  shows_one_gpu.local_rank = 0;
  for (const int rank : {0, 1})
    EXPECT_EQ(fault_of("127.1", rank, shows_one_gpu), "no error");
  for (const int rank : {2, 3})
    EXPECT_THAT(fault_of("127.1", rank, shows_one_gpu), HasSubstr("loopback"));
}

}  // namespace
}  // namespace lockstep
