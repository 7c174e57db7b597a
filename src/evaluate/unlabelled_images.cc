#include "src/evaluate/unlabelled_images.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/checkpoint/safetensors.h"
#include "src/data/idx.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Pixels and their shape: count, channels, height, width.
struct Images {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> pixels;
};

[[noreturn]] void refuse(const fs::path& path, const std::string& problem) {
  throw InvalidArgument(
      "cannot read images from \"" + path.string() + "\": " + problem +
      "\n  next:    name an IDX file of bytes, or a safetensors file with one "
      "tensor of type U8, images x channels x height x width");
}

std::string in_words(const std::vector<std::int64_t>& shape) {
  std::string words;
  for (const std::int64_t extent : shape)
    words += (words.empty() ? "" : " x ") + std::to_string(extent);
  return words;
}

// A safetensors file has its header, a JSON object, after eight bytes of
// length. In an IDX file this byte is the first of the images' height: a brace
// would mean more than two thousand million rows.
bool is_safetensors(const std::vector<std::byte>& bytes) {
  constexpr std::size_t kLength = 8;
  return bytes.size() > kLength && bytes[kLength] == std::byte{'{'};
}

Images images_of_tensor(const std::vector<std::byte>& bytes,
                        const fs::path& path) {
  const SafetensorsView file = parse_safetensors(bytes, path.string());
  if (file.tensors.size() != 1)
    refuse(path, "it holds " + std::to_string(file.tensors.size()) +
                     " tensors, expected one");
  const TensorBytes& tensor = file.tensors[0];
  if (tensor.type != SafetensorsType::kU8)
    refuse(path, "its tensor \"" + tensor.name + "\" is of type " +
                     std::string(name_of(tensor.type)) + ", expected U8");
  Images images{.shape = tensor.shape, .pixels = {}};
  if (images.shape.size() == 3)
    images.shape.insert(images.shape.begin() + 1, 1);
  if (images.shape.size() != 4)
    refuse(path, "its tensor \"" + tensor.name + "\" has the shape " +
                     in_words(tensor.shape));
  const auto* begin =
      reinterpret_cast<const std::uint8_t*>(tensor.bytes.data());
  images.pixels.assign(begin, begin + tensor.bytes.size());
  return images;
}

Images images_of_idx(const std::vector<std::byte>& bytes,
                     const fs::path& path) {
  IdxArray array = decode_idx(bytes, 3, path.string());
  const auto extent = [&](std::size_t i) {
    return static_cast<std::int64_t>(array.dimensions[i]);
  };
  return {.shape = {extent(0), 1, extent(1), extent(2)},
          .pixels = std::move(array.elements)};
}

}  // namespace

ImageDataset read_unlabelled_images(const fs::path& path,
                                    const ImageDataset& like) {
  const auto bytes = read_whole_file(path);
  Images images = is_safetensors(bytes) ? images_of_tensor(bytes, path)
                                        : images_of_idx(bytes, path);
  if (images.pixels.empty())
    refuse(path, "its shape is " + in_words(images.shape));
  if (images.shape[1] != std::ssize(like.mean))
    refuse(path, "its images have " + std::to_string(images.shape[1]) +
                     " channels, but those of " + like.title + " have " +
                     std::to_string(like.mean.size()));
  return {.title = path.filename().string(),
          .count = images.shape[0],
          .channels = images.shape[1],
          .height = images.shape[2],
          .width = images.shape[3],
          .images = std::move(images.pixels),
          .labels = {},
          .class_names = like.class_names,
          .mean = like.mean,
          .standard_deviation = like.standard_deviation};
}

}  // namespace lockstep
