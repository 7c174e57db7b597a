// libFuzzer program for the IDX decoder: it either decodes the bytes or throws
// InvalidArgument. The first byte chooses the dimensions, and whether the right
// magic number precedes the rest, because random bytes seldom contain it.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "src/data/idx.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t dimension_count = data[0] % 4 + 1;
  std::vector<std::uint8_t> contents;
  if (data[0] >= 128) contents = {0, 0, 8, dimension_count};
  contents.insert(contents.end(), data + 1, data + size);
  try {
    const auto array = lockstep::decode_idx(std::as_bytes(std::span(contents)),
                                            dimension_count, "fuzz");
    std::size_t count = 1;
    for (const std::size_t dimension : array.dimensions) count *= dimension;
    if (count != array.elements.size()) std::abort();
  } catch (const lockstep::InvalidArgument&) {
    // Refusing the input is correct too.
  }
  return 0;
}
