// Well-formed IDX files, plain and compressed, for the tests of this layer.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

namespace lockstep {

using FileBytes = std::vector<std::uint8_t>;

inline void append_number(FileBytes& bytes, std::uint32_t number) {
  for (const int shift : {24, 16, 8, 0})
    bytes.push_back(static_cast<std::uint8_t>(number >> shift));
}

// An IDX file of unsigned bytes with the given header and elements, which may
// contradict each other.
inline FileBytes idx_file(const std::vector<std::uint32_t>& dimensions,
                          const FileBytes& elements) {
  FileBytes bytes;
  append_number(bytes, 0x800 + static_cast<std::uint32_t>(dimensions.size()));
  for (const std::uint32_t dimension : dimensions)
    append_number(bytes, dimension);
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

inline FileBytes gzip(const FileBytes& plain) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, MAX_WBITS + 16, 8,
                   Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  FileBytes packed(deflateBound(&stream, plain.size()) + 64);
  stream.next_in = const_cast<Bytef*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("deflate");
  return packed;
}

// 0, 1, 2, … as pixels.
inline FileBytes counting(std::size_t count) {
  FileBytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::uint8_t>(i);
  return bytes;
}

}  // namespace lockstep
