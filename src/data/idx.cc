#include "src/data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "lockstep/base/error.h"
#include "src/data/data_file.h"
#include "src/data/gzip.h"

namespace lockstep {
namespace {

constexpr std::size_t kNumberBytes = 4;
constexpr std::uint32_t kUnsignedByte = 0x08;

// The bytes of an IDX file in order, from any source.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `out`, or a part of it at the end; returns the number of bytes.
  virtual std::size_t read(std::span<std::uint8_t> out) = 0;
  // An upper bound for the number of all bytes.
  virtual std::size_t most_bytes() const = 0;
};

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(std::span<const std::byte> contents)
      : contents_(contents) {}

  std::size_t read(std::span<std::uint8_t> out) override {
    const std::size_t count = std::min(out.size(), contents_.size() - offset_);
    const auto piece = contents_.subspan(offset_, count);
    std::transform(piece.begin(), piece.end(), out.begin(), [](std::byte b) {
      return std::to_integer<std::uint8_t>(b);
    });
    offset_ += count;
    return count;
  }

  std::size_t most_bytes() const override { return contents_.size(); }

 private:
  std::span<const std::byte> contents_;
  std::size_t offset_ = 0;
};

class GzipSource final : public ByteSource {
 public:
  GzipSource(std::span<const std::byte> contents, const std::string& file)
      : reader_(contents, file), compressed_bytes_(contents.size()) {}

  std::size_t read(std::span<std::uint8_t> out) override {
    return reader_.read(out);
  }

  std::size_t most_bytes() const override {
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
    if (compressed_bytes_ > kMost / GzipReader::kMostExpansion) return kMost;
    return compressed_bytes_ * GzipReader::kMostExpansion;
  }

 private:
  GzipReader reader_;
  std::size_t compressed_bytes_;
};

// Decodes one file: magic number, dimensions, elements, then the end.
class IdxDecoder {
 public:
  IdxDecoder(ByteSource& source, const std::string& file)
      : source_(source), file_(file) {}

  IdxArray decode(std::size_t dimension_count) {
    check_magic(dimension_count);
    IdxArray array;
    for (std::size_t i = 0; i < dimension_count; ++i)
      array.dimensions.push_back(read_number("a dimension"));
    const std::size_t count = count_elements(array.dimensions);
    array.elements.resize(count);
    const std::size_t found = source_.read(array.elements);
    if (found != count)
      fail({.problem = "there are too few elements",
            .offset = offset_ + found,
            .expected = describe(array.dimensions, count),
            .found = fmt::format("the end of the data after {}", found)});
    offset_ += count;
    check_end(array.dimensions, count);
    return array;
  }

 private:
  [[noreturn]] void fail(MalformedFile fault) const {
    fault.file = file_;
    throw malformed_file(fault);
  }

  static std::string describe(const std::vector<std::size_t>& dimensions,
                              std::size_t count) {
    return fmt::format("{} = {} bytes", fmt::join(dimensions, " x "), count);
  }

  std::uint32_t read_number(const char* what) {
    std::array<std::uint8_t, kNumberBytes> bytes{};
    const std::size_t found = source_.read(bytes);
    if (found != kNumberBytes)
      fail({.problem = "the header is incomplete",
            .offset = offset_ + found,
            .expected = fmt::format("{} of {} bytes", what, kNumberBytes),
            .found = fmt::format("the end of the data after {}", found)});
    offset_ += kNumberBytes;
    std::uint32_t number = 0;
    for (const std::uint8_t byte : bytes) number = number << 8 | byte;
    return number;
  }

  void check_magic(std::size_t dimension_count) {
    const std::uint32_t magic = read_number("a magic number");
    const auto expected =
        kUnsignedByte << 8 | static_cast<std::uint32_t>(dimension_count);
    if (magic == expected) return;
    fail({.problem = "the magic number is wrong",
          .offset = 0,
          .expected = fmt::format("{:#010x} (IDX, unsigned bytes, dimensions: "
                                  "{})",
                                  expected, dimension_count),
          .found = fmt::format("{:#010x}", magic)});
  }

  // The product, if the file can hold this many; checked before memory is
  // allocated.
  std::size_t count_elements(const std::vector<std::size_t>& dimensions) {
    std::size_t count = 1;
    bool overflow = false;
    for (const std::size_t dimension : dimensions)
      overflow |= __builtin_mul_overflow(count, dimension, &count);
    const std::size_t most =
        source_.most_bytes() - std::min(source_.most_bytes(), offset_);
    if (!overflow && count <= most) return count;
    fail({.problem = "the dimensions do not match the size of the file",
          .offset = kNumberBytes,
          .expected =
              fmt::format("{} bytes of elements", fmt::join(dimensions, " x ")),
          .found = fmt::format("room for at most {}", most)});
  }

  void check_end(const std::vector<std::size_t>& dimensions,
                 std::size_t count) {
    std::array<std::uint8_t, 1> more{};
    if (source_.read(more) == 0) return;
    fail({.problem = "there is more data than the dimensions say",
          .offset = offset_,
          .expected = fmt::format("the end of the data, after {}",
                                  describe(dimensions, count)),
          .found = "more bytes"});
  }

  ByteSource& source_;
  const std::string& file_;
  std::size_t offset_ = 0;
};

}  // namespace

IdxArray decode_idx(std::span<const std::byte> contents,
                    std::size_t dimension_count, const std::string& file) {
  if (dimension_count < 1 || dimension_count > 255)
    throw InvalidArgument(fmt::format(
        "an IDX file has 1 to 255 dimensions, not {}", dimension_count));
  std::unique_ptr<ByteSource> source;
  if (is_gzip(contents))
    source = std::make_unique<GzipSource>(contents, file);
  else
    source = std::make_unique<PlainSource>(contents);
  return IdxDecoder(*source, file).decode(dimension_count);
}

IdxArray read_idx_file(const std::filesystem::path& path,
                       std::size_t dimension_count) {
  return decode_idx(read_data_file(path), dimension_count, path.string());
}

}  // namespace lockstep
