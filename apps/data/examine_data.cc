#include "apps/data/examine_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "apps/data/on_threads.h"
#include "lockstep/base/error.h"
#include "src/data/data_file.h"
#include "src/data/transform/image_folder_splits.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Holds the headers of nearly all files; of the others all is read.
constexpr std::size_t kHeaderBytes = 64 << 10;

// ImageFolder wants transforms to one size; this file applies none.
constexpr std::string_view kUnused = "center_crop(1)";

struct FileFacts {
  ImageSize size{};
  bool is_png = false;
  std::string problem{};
};

// The first line of an error, without the path.
std::string reason_in(std::string_view message, const std::string& path) {
  message = message.substr(0, message.find('\n'));
  const std::size_t at = message.find(path + ": ");
  if (at != message.npos) message.remove_prefix(at + path.size() + 2);
  return std::string(message);
}

ImageSize size_in_headers(const std::vector<std::byte>& start,
                          const fs::path& path) {
  try {
    return image_size(start, path.string());
  } catch (const InvalidArgument&) {
    if (start.size() < kHeaderBytes) throw;
    return image_size(read_data_file(path), path.string());
  }
}

FileFacts look_at_file(const fs::path& path, ExamineDepth depth) {
  FileFacts facts;
  try {
    std::vector<std::byte> contents;
    switch (depth) {
      case ExamineDepth::kHeaders:
        contents = read_data_file(path, kHeaderBytes);
        facts.size = size_in_headers(contents, path);
        break;
      case ExamineDepth::kPixels:
        contents = read_data_file(path);
        facts.size = decode_image(contents, path.string()).size;
        break;
    }
    // The other files of images that can be read begin with ff.
    facts.is_png = contents.front() == std::byte{0x89};
  } catch (const InvalidArgument& error) {
    facts.problem = reason_in(error.what(), path.string());
  } catch (const SystemError& error) {
    facts.problem = reason_in(error.what(), path.string());
  }
  return facts;
}

std::optional<ImageSizes> sizes_of(std::vector<ImageSize> sizes) {
  if (sizes.empty()) return std::nullopt;
  std::ranges::sort(sizes, [](const ImageSize& one, const ImageSize& other) {
    return std::pair(one.height * one.width, one.height) <
           std::pair(other.height * other.width, other.height);
  });
  return ImageSizes{.smallest = sizes.front(),
                    .median = sizes[sizes.size() / 2],
                    .largest = sizes.back()};
}

void add_file(const FileFacts& facts, const fs::path& path,
              std::vector<ImageSize>& sizes, SplitReport& report) {
  if (!facts.problem.empty()) {
    report.broken.push_back({path.string(), facts.problem});
    return;
  }
  ++report.kinds[facts.is_png ? "PNG" : "JPEG"];
  sizes.push_back(facts.size);
}

// Channels lie side by side in an Image, one after the other in a dataset.
Image image_in(const ImageDataset& dataset, std::int64_t index) {
  Image image{.size = {dataset.height, dataset.width}};
  const auto pixels = dataset.image(index);
  const auto plane = static_cast<std::size_t>(dataset.height * dataset.width);
  for (std::size_t i = 0; i < plane; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel)
      image.pixels.push_back(
          pixels[i + (dataset.channels == 3 ? channel * plane : 0)]);
  return image;
}

}  // namespace

std::vector<std::pair<std::string, std::unique_ptr<ImageFolder>>>
open_image_folders(const fs::path& root) {
  std::vector<std::pair<std::string, std::unique_ptr<ImageFolder>>> folders;
  const auto open = [&](const std::string& name, const fs::path& path) {
    ImageFolderOptions options;
    options.labelled = holds_folders(path);
    folders.emplace_back(
        name, std::make_unique<ImageFolder>(path, Compose(kUnused), options));
  };
  // A class may be called train, but then it has images, not classes.
  const std::vector<std::string> splits = split_folders(root);
  if (splits.empty()) open("all", root);
  for (const std::string& name : splits) open(name, root / name);
  return folders;
}

SplitReport examine_folder(const ImageFolder& folder, const fs::path& root,
                           ExamineDepth depth, int threads) {
  std::vector<FileFacts> files(static_cast<std::size_t>(folder.size()));
  for_each_on_threads(folder.size(), threads, [&](std::int64_t i) {
    files[static_cast<std::size_t>(i)] = look_at_file(folder.path(i), depth);
  });
  SplitReport report{.images = folder.size()};
  for (const std::string& name : folder.class_names())
    report.classes.push_back({.name = name});
  std::vector<ImageSize> sizes;
  for (std::int64_t i = 0; i < folder.size(); ++i) {
    if (!report.classes.empty())
      ++report.classes[static_cast<std::size_t>(folder.label(i))].images;
    add_file(files[static_cast<std::size_t>(i)],
             folder.path(i).lexically_relative(root), sizes, report);
  }
  report.sizes = sizes_of(std::move(sizes));
  return report;
}

SplitReport examine_dataset(const ImageDataset& dataset) {
  const ImageSize size{dataset.height, dataset.width};
  SplitReport report{
      .images = dataset.count,
      .kinds = {{dataset.channels == 1 ? "grey" : "RGB", dataset.count}},
      .sizes = ImageSizes{size, size, size}};
  for (const std::string& name : dataset.class_names)
    report.classes.push_back({.name = name});
  for (const std::int64_t label : dataset.labels)
    ++report.classes[static_cast<std::size_t>(label)].images;
  return report;
}

ShownSamples shown_samples(const ImageFolder& folder) {
  ShownSamples samples;
  samples.class_names.assign(folder.class_names().begin(),
                             folder.class_names().end());
  if (samples.class_names.empty()) samples.class_names.emplace_back("all");
  samples.by_class.resize(samples.class_names.size());
  for (std::int64_t i = 0; i < folder.size(); ++i) {
    const std::int64_t label = folder.label(i);
    samples.by_class[label == kNoLabel ? 0 : static_cast<std::size_t>(label)]
        .push_back(i);
  }
  samples.read = [&folder](std::int64_t index) {
    const fs::path path = folder.path(index);
    return decode_image(read_data_file(path), path.string());
  };
  return samples;
}

ShownSamples shown_samples(const ImageDataset& dataset) {
  ShownSamples samples{.class_names = dataset.class_names};
  samples.by_class.resize(samples.class_names.size());
  for (std::int64_t i = 0; i < dataset.count; ++i)
    samples
        .by_class[static_cast<std::size_t>(
            dataset.labels[static_cast<std::size_t>(i)])]
        .push_back(i);
  samples.read = [&dataset](std::int64_t index) {
    return image_in(dataset, index);
  };
  return samples;
}

}  // namespace lockstep
