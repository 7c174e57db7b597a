// The libFuzzer target for the bytes that a store's server or client reads from
// its socket. No bytes may crash a parser, and parsed input must keep its
// meaning when it is encoded again. store_protocol_test.cc runs it too, on a
// corpus of valid frames.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "src/net/frame.h"
#include "src/store/store_protocol.h"

namespace lockstep {
namespace {

using View = std::span<const std::byte>;

void check_equal(const Bytes& written, View read) {
  if (!std::ranges::equal(written, read)) std::abort();
}

// `parse` throws only NetworkError for invalid bytes.
void try_parse(auto parse) {
  try {
    parse();
  } catch (const NetworkError&) {
    return;
  }
}

void parse_frame(View frame) {
  try_parse([&] { check_equal(encode(parse_request(frame)), frame); });
  try_parse([&] { check_equal(encode(parse_answer(frame)), frame); });
  try_parse([&] { check_equal(encode_number(parse_number(frame)), frame); });
  try_parse([&] {
    const std::vector<Bytes> values = parse_values(frame);
    std::vector<const Bytes*> pointers;
    for (const Bytes& value : values) pointers.push_back(&value);
    check_equal(encode_values(pointers), frame);
  });
  try_parse([&] { check_equal(encode(parse_secret(frame)), frame); });
  try_parse([&] { check_equal(encode(parse_introduction(frame)), frame); });
  try_parse([&] { parse_verdict(frame); });
  read_preamble(frame);
}

// Feeds `data` in pieces of `step` bytes; returns the number of bytes in whole
// frames.
std::size_t parse_stream(View data, std::size_t step) {
  FrameReader reader(std::size_t{1} << 12);
  std::size_t found = 0;
  try {
    for (std::size_t i = 0; i < data.size(); i += step) {
      reader.append(data.subspan(i, std::min(step, data.size() - i)));
      while (const auto frame = reader.next_frame()) {
        parse_frame(*frame);
        found += kFrameHeaderBytes + frame->size();
      }
    }
  } catch (const NetworkError&) {
    return found;
  }
  return found;
}

}  // namespace
}  // namespace lockstep

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  const lockstep::View bytes = std::as_bytes(std::span(data, size));
  lockstep::parse_frame(bytes);
  const std::size_t found = lockstep::parse_stream(bytes, 7);
  if (found != lockstep::parse_stream(bytes, std::max(size, std::size_t{1})))
    std::abort();
  return 0;
}
