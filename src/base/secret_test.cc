#include "src/base/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::MatchesRegex;

// The kernel now refuses random bytes to this process.
bool forbid_random_bytes() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(std::size(steps)),
                           steps};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Secret, IsAnotherOneEachTime) {
  EXPECT_NE(random_value<Secret>(), random_value<Secret>());
  EXPECT_NE(random_value<std::uint64_t>(), random_value<std::uint64_t>());
  EXPECT_NE(random_hex(32), random_hex(32));
}

// More bytes than the kernel is guaranteed to give in one call.
TEST(Secret, EveryByteIsRandom) {
  std::vector<std::byte> bytes(4096);
  std::vector<std::byte> seen(bytes.size());
  for (int i = 0; i < 16; ++i) {
    fill_randomly(bytes);
    for (std::size_t at = 0; at < bytes.size(); ++at) seen[at] |= bytes[at];
  }
  EXPECT_EQ(std::ranges::count(seen, std::byte{}), 0);
}

TEST(Secret, HasTwoHexadecimalDigitsAByteAsText) {
  EXPECT_EQ(random_hex(0), "");
  EXPECT_THAT(random_hex(12), MatchesRegex("[0-9a-f]{24}"));
}

TEST(Secret, EqualsOnlyWhatIsTheSameInEveryByte) {
  const auto secret = random_value<Secret>();
  EXPECT_TRUE(equal_in_constant_time(secret, Secret(secret)));
  EXPECT_TRUE(equal_in_constant_time({}, {}));
  for (std::size_t at = 0; at < secret.size(); ++at) {
    Secret guess = secret;
    guess[at] ^= std::byte{0x80};
    EXPECT_FALSE(equal_in_constant_time(secret, guess)) << "byte " << at;
  }
}

TEST(Secret, IsRefusedWhereTheKernelGivesNoRandomBytes) {
  if (::prctl(PR_GET_SECCOMP) < 0) GTEST_SKIP() << "no seccomp here";
  const auto ask = [] {
    if (!forbid_random_bytes()) std::_Exit(2);
    try {
      random_hex(32);
    } catch (const SystemError& error) {
      std::cerr << error.what();
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(0), "could not get random bytes");
}

}  // namespace
}  // namespace lockstep
