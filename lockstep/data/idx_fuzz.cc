// libFuzzer program for the IDX decoder: whatever the bytes, it either decodes
// them or throws InvalidArgument. The first byte chooses the dimensions.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/data/idx.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  if (size == 0) return 0;
  const auto contents = std::as_bytes(std::span(data, size)).subspan(1);
  try {
    const auto array =
        lockstep::decode_idx(contents, std::size_t{1} + data[0] % 4, "fuzz");
    std::size_t count = 1;
    for (const std::size_t dimension : array.dimensions) count *= dimension;
    if (count != array.elements.size()) std::abort();
  } catch (const lockstep::InvalidArgument&) {
    // Refusing is as good as decoding.
  }
  return 0;
}
