#include "src/store/store_protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/net/frame.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size);

namespace lockstep {
namespace {

void append(Bytes& to, const Bytes& data) {
  to.insert(to.end(), data.begin(), data.end());
}

// One request of every kind.
std::vector<Bytes> requests() {
  static const Bytes value = to_bytes("value");
  static const Bytes expected = to_bytes("expected");
  std::vector<Bytes> all;
  for (int kind = 1; kind <= 9; ++kind) {
    Request request{.kind = static_cast<RequestKind>(kind), .id = 7u};
    request.keys = {"key"};
    if (request.kind == RequestKind::kWaitAny ||
        request.kind == RequestKind::kMultiGet)
      request.keys = {"a", "", "key"};
    if (request.kind == RequestKind::kWithdrawLastWill) request.keys = {};
    request.amount = -3;
    if (request.kind == RequestKind::kCompareAndSet)
      request.expected = expected;
    request.value = value;
    all.push_back(encode(request));
  }
  return all;
}

TEST(StoreProtocol, ReadsWhatItWrites) {
  for (const Bytes& bytes : requests()) {
    const Request request = parse_request(bytes);
    EXPECT_EQ(request.id, 7u);
    EXPECT_EQ(request.amount, -3);
    EXPECT_EQ(to_text(request.value), "value");
    EXPECT_EQ(request.expected.has_value(),
              request.kind == RequestKind::kCompareAndSet);
    EXPECT_EQ(encode(request), bytes);
  }
  const Answer answer =
      parse_answer(encode(Answer{9, AnswerStatus::kRefused, to_bytes("why")}));
  EXPECT_EQ(answer.id, 9u);
  EXPECT_EQ(answer.status, AnswerStatus::kRefused);
  EXPECT_EQ(to_text(answer.value), "why");
  EXPECT_EQ(parse_number(encode_number(INT64_MIN)), INT64_MIN);
  const std::vector<Bytes> values{to_bytes("one"), {}, to_bytes("three")};
  const std::vector pointers{&values[0], &values[1], &values[2]};
  EXPECT_EQ(parse_values(encode_values(pointers)), values);
  for (const Verdict& said : {Verdict{true, "name"}, Verdict{false, "no"}}) {
    const Verdict heard = parse_verdict(encode(said));
    EXPECT_EQ(heard.is_welcome, said.is_welcome);
    EXPECT_EQ(heard.text, said.text);
  }
  EXPECT_EQ(read_preamble(store_preamble()), kStoreProtocolVersion);
}

TEST(StoreProtocol, RefusesEveryRequestThatIsCutShort) {
  for (const Bytes& bytes : requests()) {
    const std::size_t fixed = bytes.size() - std::string("value").size();
    for (std::size_t size = 0; size < fixed; ++size)
      EXPECT_THROW(parse_request(std::span(bytes).first(size)), NetworkError)
          << size;
  }
}

TEST(StoreProtocol, RefusesWhatNoClientSends) {
  Bytes bytes = requests()[0];
  bytes[0] = std::byte{10};
  EXPECT_THROW(parse_request(bytes), NetworkError) << "unknown kind";
  bytes[0] = static_cast<std::byte>(RequestKind::kWithdrawLastWill);
  EXPECT_THROW(parse_request(bytes), NetworkError) << "a key too many";

  const std::string long_key(Store::kMaxKeyBytes + 1, 'k');
  EXPECT_THROW(parse_request(encode(
                   Request{.kind = RequestKind::kGet, .keys = {long_key}})),
               NetworkError);
  const Bytes large(Store::kMaxValueBytes + 1);
  Request request{.kind = RequestKind::kSet, .keys = {"key"}};
  request.value = large;
  EXPECT_THROW(parse_request(encode(request)), NetworkError);
  EXPECT_THROW(parse_number(Bytes(7)), NetworkError);
  EXPECT_THROW(parse_number(Bytes(9)), NetworkError);
  EXPECT_THROW(parse_answer(Bytes(4)), NetworkError);
  EXPECT_THROW(parse_answer(Bytes(5, std::byte{2})), NetworkError);
  EXPECT_THROW(parse_verdict({}), NetworkError);
}

TEST(StoreProtocol, KnowsItsOwnPreambleOnly) {
  Bytes other = store_preamble();
  other.back() = std::byte{42};
  EXPECT_EQ(read_preamble(other), 42);
  other[0] = std::byte{'X'};
  EXPECT_EQ(read_preamble(other), std::nullopt);
  EXPECT_EQ(read_preamble(to_bytes("GET / HTTP/1.1")), std::nullopt);
  EXPECT_EQ(read_preamble(to_bytes("LKSTORE")), std::nullopt);
}

TEST(StoreProtocol, ReadsIntroductionsOfTheirExactSizeOnly) {
  const Introduction said{random_value<Challenge>(), random_value<Proof>()};
  const Introduction heard = parse_introduction(encode(said));
  EXPECT_EQ(heard.challenge, said.challenge);
  EXPECT_EQ(heard.proof, said.proof);
  EXPECT_EQ(parse_secret(encode(said.proof)), said.proof);
  for (const std::size_t size : {0, 31, 33, 63, 65, 96}) {
    EXPECT_THROW(parse_introduction(Bytes(size)), NetworkError) << size;
    EXPECT_THROW(parse_secret(Bytes(size)), NetworkError) << size;
  }
}

TEST(StoreProtocol, SurvivesMutatedBytes) {
  constexpr unsigned kSeed = 20240229;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  std::vector<Bytes> corpus = requests();
  corpus.push_back(encode(Answer{1, AnswerStatus::kDone, to_bytes("x")}));
  corpus.push_back(encode(Introduction{}));
  corpus.push_back(encode(Secret{}));
  corpus.push_back(store_preamble());
  Bytes stream;
  for (const Bytes& bytes : corpus) append(stream, make_frame(bytes));
  corpus.push_back(stream);
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes = corpus[below(corpus.size())];
    for (std::size_t edits = below(4); edits > 0 && !bytes.empty(); --edits)
      bytes[below(bytes.size())] = static_cast<std::byte>(random());
    if (below(4) == 0) bytes.resize(below(bytes.size() + 1));
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                           bytes.size());
  }
}

}  // namespace
}  // namespace lockstep
