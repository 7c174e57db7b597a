#include "src/net/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "src/net/byte_stream.h"

namespace lockstep {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  Bytes bytes;
  ByteWriter(bytes).text(text);
  return bytes;
}

std::string text_of(std::span<const std::byte> bytes) {
  return std::string(ByteReader(bytes).text(bytes.size()));
}

TEST(ByteStream, ReadsTheNumbersItWrote) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.number(std::uint8_t{0xfe});
  writer.number(std::uint16_t{0x1234});
  writer.number(std::uint32_t{0x89abcdef});
  writer.number(std::uint64_t{0x8877665544332211});
  EXPECT_EQ(bytes[1], std::byte{0x34}) << "little-endian";
  ByteReader reader(bytes);
  EXPECT_EQ(reader.number<std::uint8_t>(), 0xfe);
  EXPECT_EQ(reader.number<std::uint16_t>(), 0x1234);
  EXPECT_EQ(reader.number<std::uint32_t>(), 0x89abcdef);
  EXPECT_EQ(reader.number<std::uint64_t>(), 0x8877665544332211);
  EXPECT_FALSE(reader.overrun());
}

TEST(ByteStream, RemembersThatItWasAskedForTooMuch) {
  const Bytes bytes = bytes_of("abc");
  ByteReader reader(bytes);
  EXPECT_EQ(reader.number<std::uint32_t>(), 0u);
  EXPECT_TRUE(reader.overrun());
  EXPECT_TRUE(reader.rest().empty());
  EXPECT_TRUE(reader.overrun());
}

TEST(FrameReader, FindsTheSameFramesHoweverTheyArrive) {
  const std::vector<std::string> texts{"one", "", std::string(1000, 'x'), "4"};
  Bytes stream = bytes_of("raw");
  for (const std::string& text : texts) {
    const Bytes frame = make_frame(bytes_of(text));
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (const std::size_t step : {1, 3, 5, 64, 2000}) {
    FrameReader reader(1000);
    std::vector<std::string> found;
    bool began = false;
    for (std::size_t i = 0; i < stream.size(); i += step) {
      reader.append(
          std::span(stream).subspan(i, std::min(step, stream.size() - i)));
      if (!began) began = reader.next_bytes(3).has_value();
      if (!began) continue;
      while (const auto frame = reader.next_frame())
        found.push_back(text_of(*frame));
    }
    EXPECT_EQ(found, texts) << "in steps of " << step;
    EXPECT_EQ(reader.buffered_bytes(), 0u);
  }
}

TEST(FrameReader, RefusesALongFrameFromItsLengthAlone) {
  FrameReader reader(10);
  const Bytes frame = make_frame(Bytes(11));
  reader.append(std::span(frame).first(kFrameHeaderBytes));
  EXPECT_THROW(reader.next_frame(), NetworkError);
  reader.set_max_frame_bytes(11);
  EXPECT_EQ(reader.next_frame(), std::nullopt);
}

}  // namespace
}  // namespace lockstep
