// Reads IDX files, the format of MNIST and its successors: see
// docs/formats/idx.md.
//
// Errors:  InvalidArgument with file, offset, expected and found for malformed
//          contents; SystemError when the file cannot be read. A size that the
//          file cannot hold is refused before memory is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// Unsigned bytes in row-major order; their number is the product of
// `dimensions`.
struct IdxArray {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> elements;
};

// Decodes the contents of an IDX file, plain or gzip (told apart by the first
// bytes), of unsigned bytes in `dimension_count` dimensions: 3 for images, 1
// for labels. `file` names the file in messages.
IdxArray decode_idx(std::span<const std::byte> contents,
                    std::size_t dimension_count, const std::string& file);

// Decodes the file at `path`.
IdxArray read_idx_file(const std::filesystem::path& path,
                       std::size_t dimension_count);

}  // namespace lockstep
