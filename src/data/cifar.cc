#include "src/data/cifar.h"

#include <fmt/format.h>

#include "src/data/data_file.h"

namespace lockstep {

void append_cifar(std::span<const std::byte> contents, const CifarLabels& form,
                  const std::string& file, CifarImages& images) {
  const std::size_t record = form.bytes + kCifarPixels;
  const std::size_t count = contents.size() / record;
  if (count == 0 || contents.size() % record != 0)
    throw malformed_file(
        {.file = file,
         .problem = "it does not consist of whole images",
         .offset = count * record,
         .expected = fmt::format("one image or more, of {} bytes each", record),
         .found = fmt::format("{} bytes there", contents.size() % record)});
  images.labels.reserve(images.labels.size() + count);
  images.pixels.reserve(images.pixels.size() + count * kCifarPixels);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * record + form.bytes - 1;
    const auto label = std::to_integer<std::uint8_t>(contents[at]);
    if (label >= form.classes)
      throw malformed_file(
          {.file = file,
           .problem = "a label is outside the classes",
           .offset = at,
           .expected = fmt::format("0 to {}", form.classes - 1),
           .found = fmt::format("{}", label)});
    images.labels.push_back(label);
    const auto* const pixels =
        reinterpret_cast<const std::uint8_t*>(&contents[at + 1]);
    images.pixels.insert(images.pixels.end(), pixels, pixels + kCifarPixels);
  }
}

}  // namespace lockstep
