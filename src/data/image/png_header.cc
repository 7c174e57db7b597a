#include "src/data/image/png_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
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

Chunk chunk_at(Bytes contents, std::size_t at, std::string_view name) {
  constexpr std::size_t kBesides = kLengthBytes + kTypeBytes + kChecksumBytes;
  const std::size_t room = contents.size() - at;
  const std::size_t length = room < kBesides ? 0 : number_at(contents, at);
  if (room < kBesides || length > room - kBesides)
    throw malformed_file(
        {.file = std::string(name),
         .problem = "it is truncated",
         .offset = contents.size(),
         .expected = fmt::format("the rest of the chunk at offset {}, and a "
                                 "chunk IEND",
                                 at),
         .found = "the end of the file"});
  const Bytes type = contents.subspan(at + kLengthBytes, kTypeBytes);
  Chunk chunk{.data = contents.subspan(at + kLengthBytes + kTypeBytes, length),
              .end = at + kBesides + length};
  std::transform(type.begin(), type.end(), std::back_inserter(chunk.type),
                 [](std::byte byte) { return static_cast<char>(byte); });
  return chunk;
}

}  // namespace

PngHeader read_png_header(Bytes contents, std::string_view name) {
  Chunk chunk = chunk_at(contents, kSignatureBytes, name);
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
  while (chunk.type != "IEND") {
    chunk = chunk_at(contents, chunk.end, name);
    if (chunk.type == "eXIf" && header.exif.empty()) header.exif = chunk.data;
  }
  return header;
}

}  // namespace lockstep
