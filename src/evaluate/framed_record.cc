#include "src/evaluate/framed_record.h"

#include <isa-l/crc.h>

#include <cstdint>

namespace lockstep {
namespace {

// CRC-32C, rotated and offset, so that data which holds checksums can have one.
std::uint32_t masked_checksum(std::string_view data) {
  std::string bytes(data);  // the library needs them writable
  const std::uint32_t checksum =
      ~crc32_iscsi(reinterpret_cast<unsigned char*>(bytes.data()),
                   static_cast<int>(bytes.size()), ~std::uint32_t{0});
  return (checksum >> 15 | checksum << 17) + 0xa282ead8U;
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof number; ++i)
    bytes.push_back(static_cast<char>(number >> 8 * i & 0xff));
  return bytes;
}

}  // namespace

std::string framed_record(std::string_view data) {
  const std::string length = little_endian(std::uint64_t{data.size()});
  return length + little_endian(masked_checksum(length)) + std::string(data) +
         little_endian(masked_checksum(data));
}

}  // namespace lockstep
