// What the ranks of one host say to each other while they come to share memory
// (local_exchange.h): plain structs on a Unix socket.
//
// Threads: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/secret.h"
#include "lockstep/comm/shm/own_cores.h"
#include "lockstep/store/store.h"
#include "lockstep/store/token_proof.h"

namespace lockstep {

constexpr std::array<char, 8> kExchangeMagic{'l', 'o', 'c', 'k',
                                             's', 't', 'e', 'p'};
constexpr std::uint32_t kExchangeVersion = 4;

// What a rank says first.
struct ExchangeGreeting {
  std::array<char, 8> magic = kExchangeMagic;
  std::uint32_t version = kExchangeVersion;
  Challenge challenge{};
};

// What rank 0 answers: that it knows the secret of its invitation.
struct ExchangeIntroduction {
  std::array<char, 8> magic = kExchangeMagic;
  Challenge challenge{};
  Proof proof{};
};

// What the rank says then: that it knows it too. Sent with its pidfd and, if it
// has one, its heap.
struct ExchangeHello {
  std::array<char, 8> magic = kExchangeMagic;
  std::uint32_t version = kExchangeVersion;
  std::int32_t rank = 0;
  Proof proof{};
  cpu_set_t cores = cores_of_this_thread();
};

// How it ends; all but the first are followed by a text.
enum class Ending : std::uint32_t {
  kFormed = 0,
  kTimedOut = 1,
  kRefused = 2,   // ranks contradict each other
  kPeerGone = 3,  // ExchangeAnswer::rank is
  kGaveUp = 4,    // rank 0 did, because of an error of its own
};

// Rank 0's answer, once for each rank, with that rank's pidfd and heap; the one
// about rank 0 itself comes first and carries the control block as well.
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

// The message of type T that `bytes` are, if they are one.
template <class T>
std::optional<T> read_message(std::span<const std::byte> bytes) {
  T message;
  if (bytes.size() != sizeof message) return std::nullopt;
  std::memcpy(&message, bytes.data(), sizeof message);
  if (message.magic != kExchangeMagic) return std::nullopt;
  return message;
}

// What the others are told of rank 0's error.
ExchangeAnswer answer_of(const Error& error);

// `answer` and the text that follows it.
Bytes failure_message(const ExchangeAnswer& answer, const std::string& why);

// Throws what `answer`, which is no kFormed, and its text stand for.
[[noreturn]] void throw_failure(const ExchangeAnswer& answer,
                                const std::string& text);

}  // namespace lockstep
