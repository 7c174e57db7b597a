#include "src/store/token_proof.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace lockstep {
namespace {

std::string hex(const Proof& proof) {
  std::string text;
  for (const std::byte byte : proof)
    text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

// The client's is 00 01 … 1f, the server's 20 21 … 3f.
Challenges counted() {
  Challenges challenges;
  for (std::size_t i = 0; i < sizeof(Challenge); ++i) {
    challenges.client[i] = static_cast<std::byte>(i);
    challenges.server[i] = static_cast<std::byte>(i + sizeof(Challenge));
  }
  return challenges;
}

// The result of Python's hmac for the bytes in docs/formats/store.md.
TEST(AProof, IsTheHmacThatTheFormatNames) {
  EXPECT_EQ(hex(prove("secret", Prover::kServer, counted())),
            "d147e8bc619ce6e1eacefee00812764195ad8a8bba61952ac6fda3b7b74001a0");
  EXPECT_EQ(hex(prove("secret", Prover::kClient, counted())),
            "69fcebd35adbb7cb5afed86b285f644436bd2cd96d995a630d0b2a7b9fcd8f06");
}

TEST(AProof, DependsOnTheTokenTheSideAndBothChallenges) {
  const Proof proof = prove("secret", Prover::kServer, counted());
  EXPECT_NE(prove("secreu", Prover::kServer, counted()), proof);
  EXPECT_NE(prove("", Prover::kServer, counted()), proof);
  EXPECT_NE(prove("secret", Prover::kServer, counted(), "slurm 71.0"), proof);
  EXPECT_NE(prove("", Prover::kServer, counted(), "slurm 71.0"),
            prove("", Prover::kServer, counted(), "slurm 71.1"));
  EXPECT_NE(prove("secret", Prover::kClient, counted()), proof);
  Challenges other = counted();
  other.client[31] ^= std::byte{1};
  EXPECT_NE(prove("secret", Prover::kServer, other), proof);
  other = counted();
  other.server[31] ^= std::byte{1};
  EXPECT_NE(prove("secret", Prover::kServer, other), proof);
}

}  // namespace
}  // namespace lockstep
