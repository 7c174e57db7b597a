// The messages between a store's client and server: docs/formats/store.md.
//
// This code converts between bytes and values; it uses no sockets.
//
// Errors:  NetworkError saying what is wrong with received bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/store/store.h"
#include "src/store/token_proof.h"

namespace lockstep {

// Each side starts with these bytes: the name of the protocol and, last, its
// version.
constexpr std::size_t kPreambleBytes = 8;
constexpr std::uint8_t kStoreProtocolVersion = 5;
Bytes store_preamble();

// The version in the other side's preamble, or nothing when the bytes are not a
// preamble of this protocol.
std::optional<std::uint8_t> read_preamble(std::span<const std::byte> bytes);

// The longest frames: from a client that has not yet proved that it has the
// job's token, and from any other client (a compare_and_set of two large
// values).
constexpr std::size_t kMaxIntroductionBytes = sizeof(Proof);
constexpr std::size_t kMaxStoreFrameBytes =
    2 * Store::kMaxValueBytes + Store::kMaxKeyBytes + 64;

// Encodes the client's messages before and after the server's introduction.
Bytes encode(const Secret& challenge_or_proof);
Secret parse_secret(std::span<const std::byte> payload);

// The server's answer to a client's challenge.
struct Introduction {
  Challenge challenge{};
  Proof proof{};
};

Bytes encode(const Introduction& introduction);
Introduction parse_introduction(std::span<const std::byte> payload);

enum class RequestKind : std::uint8_t {
  kSet = 1,
  kGet = 2,
  kWaitAny = 3,
  kAdd = 4,
  kCompareAndSet = 5,
  kErase = 6,
  kSetLastWill = 7,
  kWithdrawLastWill = 8,
  kMultiGet = 9,
};

// One call of a store. Views the bytes it was made from.
struct Request {
  RequestKind kind{};
  // Chosen by the client; the answer repeats it.
  std::uint32_t id = 0;
  // Exactly one, except for kWaitAny, kMultiGet and kSetLastWill (at least one)
  // and kWithdrawLastWill (none).
  std::vector<std::string_view> keys{};
  std::int64_t amount = 0;
  std::optional<std::span<const std::byte>> expected{};
  std::span<const std::byte> value{};
};

// Whether the answer to a request may wait for other clients.
bool may_wait(RequestKind kind);

Bytes encode(const Request& request);
Request parse_request(std::span<const std::byte> payload);

enum class AnswerStatus : std::uint8_t {
  kDone = 0,
  // The call was invalid; the value is the message of an InvalidArgument.
  kRefused = 1,
};

// The result of one call: bytes for kGet and kCompareAndSet, values for
// kMultiGet, a number for kWaitAny (index), kAdd (sum) and kErase (1: existed),
// else nothing.
struct Answer {
  std::uint32_t id = 0;
  AnswerStatus status = AnswerStatus::kDone;
  Bytes value{};
};

Bytes encode(const Answer& answer);
Answer parse_answer(std::span<const std::byte> payload);

// A number as an answer's value.
Bytes encode_number(std::int64_t number);
std::int64_t parse_number(std::span<const std::byte> value);

// Several values as an answer's value.
Bytes encode_values(std::span<const Bytes* const> values);
std::vector<Bytes> parse_values(std::span<const std::byte> value);

// The server's verdict on a client's proof.
struct Verdict {
  bool is_welcome = false;
  // The server's unique name, or why the server refuses the client.
  std::string text{};
};

Bytes encode(const Verdict& verdict);
Verdict parse_verdict(std::span<const std::byte> payload);

}  // namespace lockstep
