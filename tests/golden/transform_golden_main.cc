// Answers transform_golden.py: applies transforms to images.
//
//   PROGRAM FOLDER
//
// FOLDER/cases.json is a list of cases: {"text", "seed", "epoch", "index",
// "height", "width", "channels", "image"}, where the file "image" in FOLDER
// holds the pixels. Prints for each case one line, a JSON array of the
// operations that the transforms came to, and writes the pixels before
// ToTensor to FOLDER/NUMBER.pixels and the floats to FOLDER/NUMBER.floats.
// Without "image" it only prints.

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/transforms.h"
#include "src/data/transform/draw.h"

namespace {

namespace fs = std::filesystem;
using lockstep::Image;
using lockstep::ImageRegion;
using nlohmann::json;
using namespace lockstep::transforms;

json described(const ImageRegion& region) {
  return {region.top, region.left, region.size.height, region.size.width};
}

json described(const Pad& pad) {
  return {{"is", "pad"},
          {"sides", pad.sides},
          {"fill", pad.fill},
          {"mode", static_cast<int>(pad.mode)}};
}
json described(const Crop& crop) {
  return {{"is", "crop"}, {"region", described(crop.region)}};
}
json described(const ResizeTo& resize) {
  return {{"is", "resize"},
          {"size", {resize.size.height, resize.size.width}},
          {"by", static_cast<int>(resize.interpolation)}};
}
json described(const Mirror& mirror) {
  return {{"is", "mirror"}, {"vertical", mirror.axis == Axis::kVertical}};
}
json described(const Turn& turn) {
  return {{"is", "turn"}, {"quarters", turn.quarters}};
}
json described(const MapAffine& map) {
  return {{"is", "affine"},
          {"matrix", map.matrix},
          {"size", {map.size.height, map.size.width}},
          {"by", static_cast<int>(map.interpolation)},
          {"fill", map.fill}};
}
json described(const Adjust& adjust) {
  return {{"is", "adjust"},
          {"property", static_cast<int>(adjust.property)},
          {"factor", adjust.factor}};
}
json described(const ShiftHue& shift) {
  return {{"is", "hue"}, {"steps", shift.steps}};
}
// Braces around one pair would make a list of it.
json described(const ToGray&) { return json::object({{"is", "gray"}}); }
json described(const Blur& blur) {
  return {{"is", "blur"},
          {"kernel", {blur.kernel.height, blur.kernel.width}},
          {"sigma", blur.sigma}};
}
json described(const ToFloat&) { return json::object({{"is", "to_tensor"}}); }
json described(const NormalizeBy& by) {
  return {
      {"is", "normalize"}, {"mean", by.mean}, {"std", by.standard_deviation}};
}
json described(const Erase& erase) {
  return {{"is", "erase"},
          {"region", described(erase.region)},
          {"value", erase.value},
          {"noise", erase.noise}};
}

template <class Element>
void write(const fs::path& path, std::span<const Element> elements) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(elements.data()),
             static_cast<std::streamsize>(elements.size_bytes()));
}

Image read_image(const json& asked, const fs::path& folder) {
  Image image{.size = {asked.at("height"), asked.at("width")},
              .channels = asked.at("channels")};
  std::ifstream file(folder / asked.at("image"), std::ios::binary);
  image.pixels.assign(std::istreambuf_iterator<char>(file), {});
  return image;
}

void answer(const json& asked, const fs::path& folder,
            const std::string& number) {
  const lockstep::Compose compose(asked.at("text").get<std::string>());
  const lockstep::SampleKey key{asked.at("seed"), asked.at("epoch"),
                                asked.at("index")};
  std::vector<Operation> operations;
  draw_all(compose.transforms(), {asked.at("height"), asked.at("width")}, key,
           operations);
  json said = json::array();
  for (const Operation& operation : operations)
    said.push_back(
        std::visit([](const auto& one) { return described(one); }, operation));
  std::printf("%s\n", said.dump().c_str());
  if (!asked.contains("image")) return;
  const Image image = read_image(asked, folder);
  const Image pixels = compose.apply_to_pixels(image, key);
  write<std::uint8_t>(folder / (number + ".pixels"), pixels.pixels);
  std::vector<float> numbers;
  compose.apply(image, key, numbers);
  write<float>(folder / (number + ".floats"), numbers);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  try {
    const fs::path folder = argv[1];
    const json cases = json::parse(std::ifstream(folder / "cases.json"));
    for (std::size_t i = 0; i < cases.size(); ++i)
      answer(cases[i], folder, std::to_string(i));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
