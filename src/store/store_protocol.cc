#include "src/store/store_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "lockstep/base/error.h"
#include "src/net/byte_stream.h"

namespace lockstep {
namespace {

constexpr std::string_view kName = "LKSTORE";
static_assert(kName.size() + 1 == kPreambleBytes);

void write_request(ByteWriter& writer, const Request& request) {
  writer.number(static_cast<std::uint8_t>(request.kind));
  writer.number(request.id);
  writer.number(static_cast<std::uint32_t>(request.keys.size()));
  for (const std::string_view key : request.keys) {
    writer.number(static_cast<std::uint16_t>(key.size()));
    writer.text(key);
  }
  writer.number(static_cast<std::uint64_t>(request.amount));
  writer.number(static_cast<std::uint8_t>(request.expected.has_value()));
  if (request.expected) {
    writer.number(static_cast<std::uint32_t>(request.expected->size()));
    writer.bytes(*request.expected);
  }
  writer.bytes(request.value);
}

std::vector<std::string_view> read_keys(ByteReader& reader) {
  std::vector<std::string_view> keys;
  const auto count = reader.number<std::uint32_t>();
  // Grows as keys are parsed, because the count comes from an untrusted peer.
  for (std::uint32_t i = 0; i < count && !reader.overrun(); ++i) {
    keys.push_back(reader.text(reader.number<std::uint16_t>()));
    if (keys.back().size() > Store::kMaxKeyBytes)
      throw NetworkError(fmt::format("a key of {} bytes is beyond the limit",
                                     keys.back().size()));
  }
  return keys;
}

std::optional<std::span<const std::byte>> read_expected(ByteReader& reader) {
  const auto present = reader.number<std::uint8_t>();
  if (present > 1)
    throw NetworkError(
        fmt::format("{} where 0 or 1 says whether a value follows", present));
  if (present == 0) return std::nullopt;
  return reader.bytes(reader.number<std::uint32_t>());
}

bool has_right_key_count(RequestKind kind, std::size_t count) {
  switch (kind) {
    case RequestKind::kWaitAny:
    case RequestKind::kMultiGet:
    case RequestKind::kSetLastWill:
      return count >= 1;
    case RequestKind::kWithdrawLastWill:
      return count == 0;
    case RequestKind::kSet:
    case RequestKind::kGet:
    case RequestKind::kAdd:
    case RequestKind::kCompareAndSet:
    case RequestKind::kErase:
      return count == 1;
  }
  return false;  // a kind that this version does not know
}

}  // namespace

Bytes store_preamble() {
  Bytes bytes = to_bytes(kName);
  bytes.push_back(std::byte{kStoreProtocolVersion});
  return bytes;
}

std::optional<std::uint8_t> read_preamble(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (reader.text(kName.size()) != kName) return std::nullopt;
  const auto version = reader.number<std::uint8_t>();
  if (reader.overrun()) return std::nullopt;
  return version;
}

Bytes encode(const Secret& challenge_or_proof) {
  return {challenge_or_proof.begin(), challenge_or_proof.end()};
}

Secret parse_secret(std::span<const std::byte> payload) {
  Secret secret;
  if (payload.size() != secret.size())
    throw NetworkError(
        fmt::format("{} bytes where a challenge or a proof of {} belongs",
                    payload.size(), secret.size()));
  std::ranges::copy(payload, secret.begin());
  return secret;
}

Bytes encode(const Introduction& introduction) {
  Bytes bytes = encode(introduction.challenge);
  bytes.insert(bytes.end(), introduction.proof.begin(),
               introduction.proof.end());
  return bytes;
}

Introduction parse_introduction(std::span<const std::byte> payload) {
  const std::size_t half = std::min(payload.size(), sizeof(Challenge));
  return {.challenge = parse_secret(payload.first(half)),
          .proof = parse_secret(payload.subspan(half))};
}

bool may_wait(RequestKind kind) {
  return kind == RequestKind::kGet || kind == RequestKind::kWaitAny ||
         kind == RequestKind::kMultiGet;
}

Bytes encode(const Request& request) {
  Bytes bytes;
  bytes.reserve(64 + request.value.size() +
                (request.expected ? request.expected->size() : 0));
  ByteWriter writer(bytes);
  write_request(writer, request);
  return bytes;
}

Request parse_request(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Request request;
  request.kind = static_cast<RequestKind>(reader.number<std::uint8_t>());
  request.id = reader.number<std::uint32_t>();
  request.keys = read_keys(reader);
  request.amount = static_cast<std::int64_t>(reader.number<std::uint64_t>());
  request.expected = read_expected(reader);
  request.value = reader.rest();
  if (reader.overrun())
    throw NetworkError(
        fmt::format("a request of {} bytes is cut short", payload.size()));
  if (!has_right_key_count(request.kind, request.keys.size()))
    throw NetworkError(fmt::format("a request of kind {} with {} keys",
                                   static_cast<int>(request.kind),
                                   request.keys.size()));
  if (request.value.size() > Store::kMaxValueBytes ||
      (request.expected && request.expected->size() > Store::kMaxValueBytes))
    throw NetworkError("a value beyond the limit");
  return request;
}

Bytes encode(const Answer& answer) {
  Bytes bytes;
  bytes.reserve(8 + answer.value.size());
  ByteWriter writer(bytes);
  writer.number(answer.id);
  writer.number(static_cast<std::uint8_t>(answer.status));
  writer.bytes(answer.value);
  return bytes;
}

Answer parse_answer(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Answer answer;
  answer.id = reader.number<std::uint32_t>();
  answer.status = static_cast<AnswerStatus>(reader.number<std::uint8_t>());
  if (reader.overrun() || answer.status > AnswerStatus::kRefused)
    throw NetworkError(
        fmt::format("{} bytes that are not an answer", payload.size()));
  const auto value = reader.rest();
  answer.value.assign(value.begin(), value.end());
  return answer;
}

Bytes encode_number(std::int64_t number) {
  Bytes bytes;
  ByteWriter(bytes).number(static_cast<std::uint64_t>(number));
  return bytes;
}

std::int64_t parse_number(std::span<const std::byte> value) {
  ByteReader reader(value);
  const auto number = static_cast<std::int64_t>(reader.number<std::uint64_t>());
  if (reader.overrun() || !reader.rest().empty())
    throw NetworkError(
        fmt::format("{} bytes where a number belongs", value.size()));
  return number;
}

Bytes encode_values(std::span<const Bytes* const> values) {
  Bytes bytes;
  ByteWriter writer(bytes);
  for (const Bytes* value : values) {
    writer.number(static_cast<std::uint32_t>(value->size()));
    writer.bytes(*value);
  }
  return bytes;
}

std::vector<Bytes> parse_values(std::span<const std::byte> value) {
  std::vector<Bytes> values;
  ByteReader reader(value);
  while (reader.left() > 0) {
    const auto bytes = reader.bytes(reader.number<std::uint32_t>());
    values.emplace_back(bytes.begin(), bytes.end());
  }
  if (reader.overrun())
    throw NetworkError(
        fmt::format("{} bytes where values belong", value.size()));
  return values;
}

Bytes encode(const Verdict& verdict) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.number(static_cast<std::uint8_t>(verdict.is_welcome ? 0 : 1));
  writer.text(verdict.text);
  return bytes;
}

Verdict parse_verdict(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Verdict verdict{.is_welcome = reader.number<std::uint8_t>() == 0};
  if (reader.overrun()) throw NetworkError("an empty verdict on a client");
  verdict.text = to_text(reader.rest());
  if (verdict.text.empty() && !verdict.is_welcome)
    verdict.text = "no reason given";
  return verdict;
}

}  // namespace lockstep
