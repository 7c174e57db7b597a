#include "src/store/token_proof.h"

#include <fmt/format.h>
#include <sodium/crypto_auth_hmacsha256.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Separates proofs from every other use of a token.
constexpr std::string_view kPurpose = "Lockstep store 3";

const unsigned char* data_of(const auto& bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

void check_token(std::string_view token) {
  constexpr std::size_t kMostBytes = 256;
  if (token.size() <= kMostBytes) return;
  throw InvalidArgument(
      fmt::format("the job token, LOCKSTEP_TOKEN, has {} bytes; it may have at "
                  "most {}\n  next:    give every rank and launcher the same "
                  "shorter one",
                  token.size(), kMostBytes));
}

Proof prove(std::string_view token, Prover prover, const Challenges& challenges,
            std::string_view job) {
  static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);
  // Does not need sodium_init(), which selects vector code and seeds random
  // numbers; this function uses neither.
  const auto side = static_cast<unsigned char>(prover);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, data_of(token), token.size());
  crypto_auth_hmacsha256_update(&state, data_of(kPurpose), kPurpose.size());
  crypto_auth_hmacsha256_update(&state, &side, 1);
  crypto_auth_hmacsha256_update(&state, data_of(challenges.client),
                                challenges.client.size());
  crypto_auth_hmacsha256_update(&state, data_of(challenges.server),
                                challenges.server.size());
  crypto_auth_hmacsha256_update(&state, data_of(job), job.size());
  Proof proof;
  crypto_auth_hmacsha256_final(&state,
                               reinterpret_cast<unsigned char*>(proof.data()));
  return proof;
}

}  // namespace lockstep
