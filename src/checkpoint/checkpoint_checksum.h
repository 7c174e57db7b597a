// The checksum of a checkpoint's content: zlib's CRC-32, as
// docs/formats/checkpoint.md says.
//
// ISA-L computes it, several times faster than zlib: the thread that writes a
// checkpoint shares the processor with training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// The texts that make a file the checkpoint of a run; the second one is the
// hex() of everything else.
inline constexpr const char* kCheckpointVersionKey = "lockstep.checkpoint";
inline constexpr const char* kCheckpointChecksumKey = "lockstep.checksum";
// The version of the layout in one file.
inline constexpr int kCheckpointVersion = 1;

class CheckpointChecksum {
 public:
  void add(std::span<const std::byte> bytes);
  // Adds the length in 8 bytes first, so that two texts in a row cannot hash
  // like two others.
  void add(std::string_view text);
  void add(std::int64_t number);

  // Adds what comes before a tensor's elements: `type` as safetensors names it.
  void add_tensor(std::string_view name, std::string_view type,
                  std::span<const std::int64_t> shape);
  // Adds all texts but the checksum.
  void add_texts(const std::map<std::string, std::string>& texts);

  // Eight hexadecimal digits.
  std::string hex() const;

 private:
  std::uint32_t value_ = 0;
};

}  // namespace lockstep
