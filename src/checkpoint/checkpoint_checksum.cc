#include "src/checkpoint/checkpoint_checksum.h"

#include <isa-l/crc.h>

#include <array>
#include <cstdio>

namespace lockstep {

void CheckpointChecksum::add(std::span<const std::byte> bytes) {
  value_ = ::crc32_gzip_refl(
      value_, reinterpret_cast<const unsigned char*>(bytes.data()),
      bytes.size());
}

void CheckpointChecksum::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  add(std::as_bytes(std::span(text)));
}

void CheckpointChecksum::add(std::int64_t number) {
  add(std::as_bytes(std::span(&number, 1)));
}

void CheckpointChecksum::add_tensor(std::string_view name,
                                    std::string_view type,
                                    std::span<const std::int64_t> shape) {
  add(name);
  add(type);
  add(static_cast<std::int64_t>(shape.size()));
  for (const std::int64_t extent : shape) add(extent);
}

void CheckpointChecksum::add_texts(
    const std::map<std::string, std::string>& texts) {
  for (const auto& [key, text] : texts) {
    if (key == kCheckpointChecksumKey) continue;
    add(key);
    add(text);
  }
}

std::string CheckpointChecksum::hex() const {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%08x", value_);
  return text.data();
}

}  // namespace lockstep
