// libFuzzer program for the text of transforms: it either makes transforms,
// whose own text makes the same, or throws InvalidArgument.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/data/transforms.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  std::string printed;
  try {
    printed = lockstep::Compose(
                  std::string_view(reinterpret_cast<const char*>(data), size))
                  .text();
  } catch (const lockstep::InvalidArgument&) {
    return 0;  // refusing the input is correct too
  }
  if (lockstep::Compose(printed).text() != printed) std::abort();
  return 0;
}
