#include "src/data/image/exif.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kEntryBytes = 12;
constexpr std::uint32_t kOrientationTag = 0x0112;
constexpr std::uint32_t kShort = 3;  // types of an entry's value
constexpr std::uint32_t kLong = 4;

enum class ByteOrder { kLittle, kBig };

bool starts_with(Bytes bytes, std::string_view text) {
  const Bytes expected = std::as_bytes(std::span(text));
  return bytes.size() >= expected.size() &&
         std::equal(expected.begin(), expected.end(), bytes.begin());
}

// Numbers at any offset; 0 where one would reach past the end.
class TiffNumbers {
 public:
  TiffNumbers(Bytes bytes, ByteOrder order) : bytes_(bytes), order_(order) {}

  std::uint32_t two(std::size_t at) const { return number(at, 2); }
  std::uint32_t four(std::size_t at) const { return number(at, 4); }

 private:
  std::uint32_t number(std::size_t at, std::size_t count) const {
    if (bytes_.size() < count || at > bytes_.size() - count) return 0;
    std::uint32_t result = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t from =
          order_ == ByteOrder::kBig ? at + i : at + count - 1 - i;
      result = result << 8 | std::to_integer<std::uint32_t>(bytes_[from]);
    }
    return result;
  }

  Bytes bytes_;
  ByteOrder order_;
};

}  // namespace

int exif_orientation(Bytes block) {
  using namespace std::string_view_literals;
  const bool little = starts_with(block, "II*\0"sv);
  if (!little && !starts_with(block, "MM\0*"sv)) return 1;
  const TiffNumbers numbers(block,
                            little ? ByteOrder::kLittle : ByteOrder::kBig);
  const std::size_t directory = numbers.four(4);
  const std::size_t entries = numbers.two(directory);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (entry + kEntryBytes > block.size()) break;
    if (numbers.two(entry) != kOrientationTag) continue;
    const std::uint32_t type = numbers.two(entry + 2);
    std::uint32_t value = 0;
    if (type == kShort) value = numbers.two(entry + 8);
    if (type == kLong) value = numbers.four(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

int jpeg_orientation(Bytes contents) {
  using namespace std::string_view_literals;
  constexpr std::uint32_t kApp1 = 0xe1;
  constexpr std::uint32_t kStartOfScan = 0xda;
  constexpr std::string_view kName = "Exif\0\0"sv;
  const TiffNumbers numbers(contents, ByteOrder::kBig);
  std::size_t at = 2;  // after the marker that starts the image
  while (at + 4 <= contents.size()) {
    const std::uint32_t marker = numbers.two(at);
    if (marker == 0xffff) {  // bytes of 0xff may precede a marker
      ++at;
      continue;
    }
    const std::size_t length = numbers.two(at + 2);
    if (marker >> 8 != 0xff || (marker & 0xff) == kStartOfScan || length < 2 ||
        length > contents.size() - at - 2)
      return 1;
    const Bytes segment = contents.subspan(at + 4, length - 2);
    if ((marker & 0xff) == kApp1 && starts_with(segment, kName))
      return exif_orientation(segment.subspan(kName.size()));
    at += 2 + length;
  }
  return 1;
}

}  // namespace lockstep
