// libFuzzer program for the CIFAR decoder: it either decodes whole images with
// labels of the classes or throws InvalidArgument. The first byte chooses the
// form and how many images of zeros follow, since random bytes are seldom as
// many as an image has.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "src/data/cifar.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  if (size == 0) return 0;
  const lockstep::CifarLabels form = data[0] % 2 == 0
                                         ? lockstep::CifarLabels{1, 10}
                                         : lockstep::CifarLabels{2, 100};
  std::vector<std::uint8_t> contents(data + 1, data + size);
  if (data[0] >= 128)
    contents.resize((data[0] / 2 % 3) * (form.bytes + lockstep::kCifarPixels));
  lockstep::CifarImages images;
  try {
    lockstep::append_cifar(std::as_bytes(std::span(contents)), form, "fuzz",
                           images);
  } catch (const lockstep::InvalidArgument&) {
    return 0;  // refusing the input is correct too
  }
  const std::size_t count = images.labels.size();
  if (count == 0 || images.pixels.size() != count * lockstep::kCifarPixels ||
      contents.size() != count * (form.bytes + lockstep::kCifarPixels))
    std::abort();
  for (const std::int64_t label : images.labels)
    if (label < 0 || label >= static_cast<std::int64_t>(form.classes))
      std::abort();
  return 0;
}
