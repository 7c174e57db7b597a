#include "src/data/image/png_header.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "src/data/data_file.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kSignatureBytes = 8;
constexpr std::size_t kImageHeaderBytes = 13;
// Of a chunk, besides its data: the length, the type and the checksum.
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kTypeBytes = 4;
constexpr std::size_t kChecksumBytes = 4;
constexpr std::string_view kPixels = "IDAT";
constexpr std::size_t kBesides = kLengthBytes + kTypeBytes + kChecksumBytes;

std::uint32_t number_at(Bytes bytes, std::size_t at) {
  std::uint32_t number = 0;
  for (const std::byte byte : bytes.subspan(at, 4))
    number = number << 8 | std::to_integer<std::uint32_t>(byte);
  return number;
}

struct Chunk {
  std::string type{};
  Bytes data{};
  std::size_t end = 0;  // where the next chunk begins
};

std::string type_at(Bytes contents, std::size_t at) {
  std::string type;
  const std::size_t begin = std::min(at + kLengthBytes, contents.size());
  for (const std::byte byte :
       contents.subspan(begin, std::min(kTypeBytes, contents.size() - begin)))
    type += static_cast<char>(byte);
  return type;
}

// Nothing for a chunk that the file does not hold to its end.
std::optional<Chunk> chunk_at(Bytes contents, std::size_t at) {
  const std::size_t room = contents.size() - at;
  const std::size_t length = room < kBesides ? 0 : number_at(contents, at);
  if (room < kBesides || length > room - kBesides) return std::nullopt;
  return Chunk{.type = type_at(contents, at),
               .data = contents.subspan(at + kLengthBytes + kTypeBytes, length),
               .end = at + kBesides + length};
}

[[noreturn]] void refuse_truncated(Bytes contents, std::size_t at,
                                   std::string_view name) {
  throw malformed_file(
      {.file = std::string(name),
       .problem = "it is truncated",
       .offset = contents.size(),
       .expected = fmt::format("the rest of the chunk at offset {}, and a "
                               "chunk IEND",
                               at),
       .found = "the end of the file"});
}

}  // namespace

PngHeader read_png_header(Bytes contents, std::string_view name) {
  const auto first = chunk_at(contents, kSignatureBytes);
  if (!first) refuse_truncated(contents, kSignatureBytes, name);
  Chunk chunk = *first;
  if (chunk.type != "IHDR" || chunk.data.size() != kImageHeaderBytes)
    throw malformed_file(
        {.file = std::string(name),
         .problem = "its header is missing",
         .offset = kSignatureBytes,
         .expected = "a chunk IHDR of 13 bytes",
         .found = fmt::format("{} bytes of another chunk", chunk.data.size())});
  PngHeader header{.size = {.height = number_at(chunk.data, 4),
                            .width = number_at(chunk.data, 0)},
                   .bits_per_sample = std::to_integer<int>(chunk.data[8])};
  bool has_pixels = false;
  while (chunk.type != "IEND") {
    const auto next = chunk_at(contents, chunk.end);
    header.has_end = next.has_value();
    if (!next && has_pixels && type_at(contents, chunk.end) != kPixels) break;
    if (!next) refuse_truncated(contents, chunk.end, name);
    chunk = *next;
    has_pixels = has_pixels || chunk.type == kPixels;
    if (chunk.type == "eXIf" && header.exif.empty()) header.exif = chunk.data;
  }
  return header;
}

bool pixels_have_right_checksums(Bytes contents) {
  std::size_t at = kSignatureBytes;
  while (const auto chunk = chunk_at(contents, at)) {
    if (chunk->type == "IEND") break;
    const Bytes summed =
        contents.subspan(at + kLengthBytes, kTypeBytes + chunk->data.size());
    if (chunk->type == kPixels &&
        crc32_z(0, reinterpret_cast<const Bytef*>(summed.data()),
                summed.size()) !=
            number_at(contents, chunk->end - kChecksumBytes))
      return false;
    at = chunk->end;
  }
  return true;
}

}  // namespace lockstep
