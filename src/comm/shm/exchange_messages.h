// The messages of the ranks of one host while they set up shared memory
// (local_exchange.h): plain structs on a Unix socket.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/secret.h"
#include "src/comm/shm/own_cores.h"
#include "src/store/token_proof.h"

namespace lockstep {

constexpr std::array<char, 8> kExchangeMagic{'l', 'o', 'c', 'k',
                                             's', 't', 'e', 'p'};
constexpr std::uint32_t kExchangeVersion = 4;

// A rank's first message.
struct ExchangeGreeting {
  std::array<char, 8> magic = kExchangeMagic;
  std::uint32_t version = kExchangeVersion;
  Challenge challenge{};
};

// Rank 0's answer, which proves that it knows the secret of its invitation.
struct ExchangeIntroduction {
  std::array<char, 8> magic = kExchangeMagic;
  Challenge challenge{};
  Proof proof{};
};

// The rank's proof that it knows the secret too. Sent with its pidfd and, if it
// has one, its heap.
struct ExchangeHello {
  std::array<char, 8> magic = kExchangeMagic;
  std::uint32_t version = kExchangeVersion;
  std::int32_t rank = 0;
  Proof proof{};
  cpu_set_t cores = cores_of_this_thread();
};

// The outcome; a text follows every value except the first.
enum class Ending : std::uint32_t {
  kFormed = 0,
  kTimedOut = 1,
  kRefused = 2,   // ranks contradict each other
  kPeerGone = 3,  // the peer is ExchangeAnswer::rank
  kGaveUp = 4,    // rank 0 gave up because of its own error
};

// Rank 0's answer, one per rank, with that rank's pidfd and heap; the answer
// for rank 0 itself comes first and also carries the control block.
struct ExchangeAnswer {
  std::int32_t rank = 0;
  std::uint32_t has_heap = 0;
  Ending ending = Ending::kFormed;
  std::uint32_t each_has_a_core = 0;
};

// The proof that rank 0 (kServer) or the rank that connected to it (kClient)
// knows the invitation's secret.
Proof prove(const Secret& secret, Prover prover, const Challenges& challenges);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// `bytes` as a message of type T, if they are one.
template <class T>
std::optional<T> read_message(std::span<const std::byte> bytes) {
  T message;
  if (bytes.size() != sizeof message) return std::nullopt;
  std::memcpy(&message, bytes.data(), sizeof message);
  if (message.magic != kExchangeMagic) return std::nullopt;
  return message;
}

// The answer that reports rank 0's error to the others.
ExchangeAnswer answer_of(const Error& error);

// `answer` followed by its text.
Bytes failure_message(const ExchangeAnswer& answer, const std::string& why);

// Throws the error that `answer`, which is not kFormed, and its text describe.
[[noreturn]] void throw_failure(const ExchangeAnswer& answer,
                                const std::string& text);

}  // namespace lockstep
