#include "lockstep/data/image_folder.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/mutex.h"
#include "src/data/data_file.h"
#include "src/data/image/image_reader.h"
#include "src/data/transform/check_transform.h"
#include "src/data/transform/draw.h"
#include "src/data/transform/numbers.h"
#include "src/data/transform/pipeline.h"
#include "src/data/transform/plan.h"
#include "src/data/transform/rearrange.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 13> kOtherImages{
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2",
    ".jpe",  ".pgm", ".ppm", ".tif",  ".tiff", ".webp"};

[[noreturn]] void fail(const fs::path& folder, const std::error_code& error) {
  throw SystemError(fmt::format("cannot list {}", folder.string()),
                    error.value());
}

// A link that leads nowhere, or to where this user may not look, may be a
// folder that is not mounted.
[[noreturn]] void refuse_link(const fs::path& path,
                              const std::error_code& error) {
  throw SystemError(
      fmt::format("cannot follow {} (remove it if it is no longer needed)",
                  path.string()),
      error.value());
}

// The paths of the files below `folder` whose names say that they are images.
std::vector<std::string> images_below(const fs::path& folder) {
  std::vector<std::string> found;
  fs::path last = folder;
  std::error_code error;
  fs::recursive_directory_iterator entry(
      folder, fs::directory_options::follow_directory_symlink, error);
  // A path with more folders than this goes through a symbolic link to one
  // above it; Linux itself ends a path after 40 links.
  constexpr int kMostDepth = 32;
  for (; !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    const fs::path& path = entry->path();
    last = path;
    if (entry.depth() > kMostDepth)
      throw InvalidArgument(fmt::format(
          "cannot list {}: {} lies more than {} folders deep\n"
          "  likely:  a symbolic link names a folder that contains it\n"
          "  next:    remove the link",
          folder.string(), path.string(), kMostDepth));
    std::error_code unknown;
    if (entry->is_directory(unknown)) continue;
    // Reading a file that cannot be opened names it.
    if (has_extension(path, kImageExtensions))
      found.push_back(path.lexically_relative(folder).string());
    else if (unknown)
      refuse_link(path, unknown);
    else if (has_extension(path, kOtherImages))
      throw InvalidArgument(
          fmt::format("cannot use {}: found a {} file, expected JPEG or PNG "
                      "files\n"
                      "  next:    convert it to a .jpg, .jpeg or .png file, or "
                      "move it out of the folder",
                      path.string(), path.extension().string()));
  }
  if (error) fail(last, error);
  // As torchvision, which sorts folders by their paths, then the files of each.
  std::ranges::sort(found, {}, [](std::string_view path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string_view::npos
               ? std::pair(std::string_view(), path)
               : std::pair(path.substr(0, slash), path.substr(slash + 1));
  });
  return found;
}

std::vector<std::string> folders_in(const fs::path& root) {
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator entry(root, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_directory(unknown))
      found.push_back(entry->path().filename().string());
    else if (unknown)
      refuse_link(entry->path(), unknown);
  }
  if (error) fail(root, error);
  std::ranges::sort(found);
  return found;
}

// The size of a file beyond which it is no image that would be decoded: four
// bytes per pixel, and metadata.
std::size_t most_bytes(const DecodeOptions& options) {
  constexpr std::int64_t kMetadata = std::int64_t{64} << 20;
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 40;
  const std::int64_t pixels =
      std::clamp<std::int64_t>(options.max_pixels, 1, kMostPixels);
  return static_cast<std::size_t>(4 * pixels + kMetadata);
}

// The number of each pixel value in each channel; empty where more than
// normalisations makes the numbers.
std::vector<float> levels_of(const Compose& transforms, std::int64_t channels) {
  transforms::NumberTables tables;
  transforms::apply(transforms::ToFloat(), tables);
  for (const Transform& transform : transforms.transforms()) {
    const auto* normalize = std::get_if<Normalize>(&transform);
    if (normalize != nullptr) {
      const transforms::NormalizeBy by = transforms::normalize_by(*normalize);
      if (by.channels != 0 && by.channels != channels) return {};
      transforms::apply(by, tables);
    } else if (transforms::takes_numbers(transform)) {
      return {};
    }
  }
  std::vector<float> levels;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const auto& table = tables[static_cast<std::size_t>(channel)];
    levels.insert(levels.end(), table.begin(), table.end());
  }
  return levels;
}

}  // namespace

// What a thread needs to read images, one for each thread that reads at a time.
class ImageFolder::Workers {
 public:
  struct Worker {
    // Decodes and transforms up to the pixels, `elements` of them. Returns the
    // operations that follow.
    std::span<const transforms::Operation> make_pixels(
        const ImageFolder& folder, std::int64_t index, std::uint64_t epoch,
        std::size_t elements);

    // Replaces `operations`. An image may be too small for a transform; the
    // error names its file.
    void draw(std::span<const Transform> transforms, const ImageSize& size,
              const SampleKey& key) {
      try {
        transforms::draw_all(transforms, size, key, operations);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(
            fmt::format("cannot transform {}: {}", path, error.what()));
      }
    }

    ImageReader reader{};
    transforms::Pipeline pipeline{};
    std::vector<transforms::Operation> operations{};
    Image image{};
    std::string path{};
    std::vector<std::byte> contents{};
  };

  // Calls `use` with a worker that no other thread has.
  template <class Use>
  void borrow(const Use& use) {
    auto worker = take();
    use(*worker);
    // After an error the worker is not used again.
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(worker));
  }

 private:
  std::unique_ptr<Worker> take() {
    const MutexLock lock(mutex_);
    if (idle_.empty()) return std::make_unique<Worker>();
    auto worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_ LOCKSTEP_GUARDED_BY(mutex_);
};

ImageFolder::ImageFolder(fs::path root, Compose transforms,
                         const ImageFolderOptions& options)
    : root_(std::move(root)),
      transforms_(std::move(transforms)),
      options_(options),
      workers_(std::make_unique<Workers>()) {
  const std::optional<ImageSize> size = transforms_.output_size();
  if (!size)
    throw InvalidArgument(fmt::format(
        "cannot make batches with \"{}\": the outputs differ in size\n"
        "  next:    end the transforms with center_crop(SIZE), or another crop",
        transforms_.text()));
  shape_ = {options.decode.color == ImageColor::kGray ? 1 : 3, size->height,
            size->width};
  levels_ = levels_of(transforms_, shape_[0]);
  if (!options_.labelled) {
    list_unlabelled();
    return;
  }
  for (const std::string& name : folders_in(root_)) list_class(name);
  if (class_names_.empty())
    throw InvalidArgument(
        fmt::format("cannot use {}: it has no folders\n"
                    "  next:    put the images of each class into a folder "
                    "with the name of the class",
                    root_.string()));
}

ImageFolder::~ImageFolder() = default;

void ImageFolder::list_unlabelled() {
  std::error_code unknown;
  if (!fs::is_regular_file(root_, unknown)) return list_class("");
  names_ = root_.filename().string();
  name_ends_.push_back(names_.size());
  root_ = root_.parent_path();
}

void ImageFolder::list_class(const std::string& name) {
  const std::vector<std::string> images = images_below(root_ / name);
  if (images.empty())
    throw InvalidArgument(fmt::format(
        "cannot use {}: it has no JPEG or PNG file\n  next:    {}",
        (options_.labelled ? root_ / name : root_).string(),
        options_.labelled
            ? "remove the folder, or add images of its class"
            : "name a folder that holds .jpg, .jpeg or .png files"));
  for (const std::string& image : images) {
    names_ += image;
    name_ends_.push_back(names_.size());
  }
  if (!options_.labelled) return;
  class_names_.push_back(name);
  class_ends_.push_back(size());
}

std::int64_t ImageFolder::size() const { return std::ssize(name_ends_); }

ImageShape ImageFolder::shape() const { return shape_; }

std::int64_t ImageFolder::label(std::int64_t index) const {
  if (index < 0 || index >= size())
    throw InvalidArgument(
        fmt::format("{} has no image {}: it has {}, counted from 0",
                    root_.string(), index, size()));
  if (!options_.labelled) return kNoLabel;
  return std::ranges::upper_bound(class_ends_, index) - class_ends_.begin();
}

std::string_view ImageFolder::name_in_class(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  const std::size_t begin = i == 0 ? 0 : name_ends_[i - 1];
  return std::string_view(names_).substr(begin, name_ends_[i] - begin);
}

fs::path ImageFolder::path(std::int64_t index) const {
  std::string written;
  write_path(index, written);
  return written;
}

void ImageFolder::write_path(std::int64_t index, std::string& path) const {
  const std::int64_t known = label(index);
  path = root_.native();
  if (!path.empty() && !path.ends_with('/')) path += '/';
  if (options_.labelled) {
    path += class_names_[static_cast<std::size_t>(known)];
    path += '/';
  }
  path += name_in_class(index);
}

std::uint32_t ImageFolder::listing_checksum() const {
  uLong sum = ::crc32_z(0, nullptr, 0);
  const auto add = [&](const auto& elements) {
    const auto bytes = std::as_bytes(std::span(elements));
    sum = ::crc32_z(sum, reinterpret_cast<const Bytef*>(bytes.data()),
                    bytes.size());
  };
  for (const std::string& name : class_names_)
    add(std::span(name.c_str(), name.size() + 1));
  add(class_ends_);
  add(names_);
  add(name_ends_);
  return static_cast<std::uint32_t>(sum);
}

std::int64_t ImageFolder::read(std::int64_t index, std::uint64_t epoch,
                               std::span<float> image) const {
  workers_->borrow([&](Workers::Worker& worker) {
    const auto on_numbers =
        worker.make_pixels(*this, index, epoch, image.size());
    transforms::apply_to_numbers(on_numbers, worker.image, image);
  });
  return label(index);
}

std::int64_t ImageFolder::read_pixels(std::int64_t index, std::uint64_t epoch,
                                      std::span<std::uint8_t> image) const {
  if (levels_.empty()) return SampleSource::read_pixels(index, epoch, image);
  workers_->borrow([&](Workers::Worker& worker) {
    worker.make_pixels(*this, index, epoch, image.size());
    transforms::copy_planes(worker.image, image);
  });
  return label(index);
}

std::span<const transforms::Operation>
ImageFolder::Workers::Worker::make_pixels(const ImageFolder& folder,
                                          std::int64_t index,
                                          std::uint64_t epoch,
                                          std::size_t elements) {
  const ImageFolderOptions& options = folder.options_;
  folder.write_path(index, path);
  const std::size_t most = most_bytes(options.decode);
  read_data_file(path, contents, most + 1);
  if (contents.size() > most)
    throw InvalidArgument(fmt::format(
        "cannot read {}: it has more than {} bytes, which suffice for an image "
        "of {} pixels\n"
        "  next:    check that it is an image, or leave it out; a program of "
        "your own may raise DecodeOptions::max_pixels",
        path, most, options.decode.max_pixels));
  const ImageSize size = reader.open(contents, path, options.decode);
  draw(folder.transforms_.transforms(), size,
       {options.seed, epoch, static_cast<std::uint64_t>(index)});
  const transforms::DecodePlan plan = transforms::plan_decoding(
      size, reader.scales() ? options.scaling : DecodeScaling::kExact,
      operations);
  reader.read(plan.region, plan.denominator, image);
  const std::size_t done = pipeline.apply_to_pixels(operations, image);
  if (image.pixels.size() != elements)
    throw InvalidArgument(
        fmt::format("cannot read image {} into {} elements; it has {}", path,
                    elements, image.pixels.size()));
  return std::span<const transforms::Operation>(operations).subspan(done);
}

}  // namespace lockstep
