// How the two ends of a store's connection show each other that they have the
// same job token, without sending it.
//
// Each end chooses a random challenge and proves with the token that it has
// seen both: the server first, so that a client says nothing about its token to
// a process that took the server's place. A proof is an HMAC-SHA256 (RFC 2104)
// under the token, so one that was overheard fits no other connection. It lets
// a listener try out guesses at the token: a token must be random.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/secret.h"

namespace lockstep {

using Challenge = Secret;
using Proof = Secret;

struct Challenges {
  Challenge client{};
  Challenge server{};
};

// Whose proof it is: one end's is not the other's, so neither can be sent back.
enum class Prover : std::uint8_t { kServer = 1, kClient = 2 };

// The proof that `prover` has `token`. An empty token proves nothing, and fits
// an empty one only.
Proof prove(std::string_view token, Prover prover,
            const Challenges& challenges);

}  // namespace lockstep
