// The two ends of a store's connection prove to each other that they have the
// same job token, without sending it, and that they belong to the same job.
//
// Each end chooses a random challenge and proves with the token that it has
// seen both. The server proves first, so a client reveals nothing about its
// token to an impostor. A proof is an HMAC-SHA256 (RFC 2104) under the token,
// so an overheard proof fits no other connection. An eavesdropper can test
// guesses of the token offline, so a token must be random.
#pragma once

#include <cstdint>
#include <string_view>

#include "src/base/secret.h"

namespace lockstep {

using Challenge = Secret;
using Proof = Secret;

struct Challenges {
  Challenge client{};
  Challenge server{};
};

// The end that proves. The two ends' proofs differ, so neither can be
// reflected.
enum class Prover : std::uint8_t { kServer = 1, kClient = 2 };

// Throws InvalidArgument for a token that is too long for a store, on either
// end.
void check_token(std::string_view token);

// The proof that `prover` has `token`, as a part of the job named `job`, which
// is no secret. An empty token proves nothing and matches only an empty token.
Proof prove(std::string_view token, Prover prover, const Challenges& challenges,
            std::string_view job = {});

}  // namespace lockstep
