#include "apps/data/make_images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/data/drawn_image.h"
#include "apps/data/on_threads.h"
#include "apps/job/flags.h"
#include "lockstep/base/error.h"
#include "src/base/report_text.h"
#include "src/base/text_file.h"
#include "src/base/version.h"
#include "src/data/image/image_writer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 2> kFormats{"jpeg", "png"};

enum class ImagePart : std::uint64_t { kTrain, kVal };

// The folder at its whole path; a name that is a link becomes what it names.
fs::path resolved(const std::string& folder) {
  fs::path path = fs::weakly_canonical(fs::absolute(folder));
  return path.has_filename() ? path : path.parent_path();
}

void refuse_used_folder(const fs::path& folder) {
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder))
    throw InvalidArgument(
        fmt::format("cannot make a folder of images: {} is a file\n"
                    "  next:    name a folder that does not exist yet",
                    folder.string()));
  if (!fs::is_empty(folder))
    throw InvalidArgument(
        fmt::format("{} is not empty, and no file in it is replaced\n"
                    "  next:    name a folder that does not exist yet, or "
                    "remove this one",
                    folder.string()));
  if (fs::equivalent(folder, fs::current_path()))
    throw InvalidArgument(
        "make-images replaces an empty folder, so it cannot be the current "
        "one\n  next:    name a folder that does not exist yet");
}

// Whether a rename cannot replace `path` because something is mounted there. A
// bind mount has the device of what it shows, so only statx() tells it; where
// the kernel does not, a device other than the parent's still does.
bool is_mount_point(const fs::path& path) {
  struct statx facts {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, 0, &facts) == 0 &&
      (facts.stx_attributes & facts.stx_attributes_mask &
       STATX_ATTR_MOUNT_ROOT) != 0)
    return true;
  struct stat own {
  }, parent{};
  return ::lstat(path.c_str(), &own) == 0 &&
         ::stat(path.parent_path().c_str(), &parent) == 0 &&
         own.st_dev != parent.st_dev;
}

// Refuses, before the work, a target that no folder can replace.
void refuse_fixed_folder(const fs::path& target) {
  if (fs::is_symlink(fs::symlink_status(target)))
    throw Error(fmt::format(
        "{} is a link to what does not exist\n"
        "  next:    make the folder to which it leads, or remove it",
        target.string()));
  if (is_mount_point(target))
    throw Error(
        fmt::format("{} cannot be replaced by a new folder: a file system or "
                    "another folder is mounted there\n"
                    "  next:    name a folder below it",
                    target.string()));
}

// A folder beside another that takes its name at the end; until then it is
// removed where an error ends the work.
class UnfinishedFolder {
 public:
  explicit UnfinishedFolder(const fs::path& target) : target_(target) {
    fs::create_directories(target.parent_path());
    // A stopped run may have had the same process id.
    for (int number = 0; path_.empty(); ++number) {
      const fs::path path =
          target.parent_path() / fmt::format(".{}.{}-{}.tmp",
                                             target.filename().string(),
                                             ::getpid(), number);
      if (fs::create_directory(path)) path_ = path;
    }
  }
  ~UnfinishedFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  const fs::path& path() const { return path_; }

  // A rename replaces an empty folder, but no other.
  void take_name() {
    fs::rename(path_, target_);
    path_.clear();
  }

 private:
  fs::path target_;
  fs::path path_{};
};

// Writes images of one part, train or val.
class PartWriter {
 public:
  PartWriter(const MakeImagesOptions& options, ImagePart part, fs::path folder)
      : options_(options),
        part_(part),
        folder_(std::move(folder)),
        names_(drawn_class_names(options.classes)) {}

  // Returns the bytes of the files.
  std::int64_t write(std::int64_t count) const {
    for (const std::string& name : names_)
      fs::create_directories(folder_ / name);
    std::atomic<std::int64_t> bytes{0};
    for_each_on_threads(count, options_.threads,
                        [&](std::int64_t i) { bytes += write_image(i); });
    return bytes;
  }

 private:
  // Classes take turns, so that the numbers of their images differ by 1 at
  // most.
  std::int64_t write_image(std::int64_t index) const {
    SampleRandom random(options_.seed, static_cast<std::uint64_t>(part_),
                        static_cast<std::uint64_t>(index));
    const auto side = [&] {
      const auto size = static_cast<double>(options_.size);
      return std::llround(size * random.uniform(1, 1.5));
    };
    const ImageSize size{.height = side(), .width = side()};
    const auto class_index = static_cast<int>(index % options_.classes);
    const Image image = draw_image(class_index, size, random);
    const bool jpeg = options_.format == "jpeg";
    const std::vector<std::byte> file =
        jpeg ? write_jpeg(image) : write_png(image);
    const std::string& name = names_[static_cast<std::size_t>(class_index)];
    replace_text_file(
        folder_ / name /
            fmt::format("{}_{:06}.{}", name, index / options_.classes,
                        jpeg ? "jpg" : "png"),
        {reinterpret_cast<const char*>(file.data()), file.size()});
    return std::ssize(file);
  }

  const MakeImagesOptions& options_;
  ImagePart part_;
  fs::path folder_;
  std::vector<std::string> names_;
};

std::string readme_text(const MakeImagesOptions& options) {
  return fmt::format(
      "These images are synthetic: a program drew shapes and patterns, and "
      "they show nothing real.\n"
      "Lockstep {} made them with the command\n\n"
      "    lockstep data make-images DIR --classes {} --count {} --test-count "
      "{} --size {} --format {} --seed {}\n",
      version(), options.classes, options.count, *options.test_count,
      options.size, options.format, options.seed);
}

// Returns the bytes of the images.
std::int64_t fill_folder(const MakeImagesOptions& options,
                         const fs::path& target) {
  UnfinishedFolder folder(target);
  const fs::path& path = folder.path();
  replace_text_file(path / "README.txt", readme_text(options));
  std::int64_t bytes = PartWriter(options, ImagePart::kTrain, path / "train")
                           .write(options.count);
  if (*options.test_count > 0)
    bytes += PartWriter(options, ImagePart::kVal, path / "val")
                 .write(*options.test_count);
  folder.take_name();
  return bytes;
}

std::int64_t test_count_of(const MakeImagesOptions& options) {
  if (options.test_count) return *options.test_count;
  if (!options.test_share)
    return std::max<std::int64_t>(options.count / 10, options.classes);
  return std::llround(static_cast<double>(options.count) * *options.test_share);
}

}  // namespace

void add_make_images_options(CLI::App& command, MakeImagesOptions& options) {
  command.footer(
      "  lockstep data make-images shapes\n"
      "  lockstep data make-images shapes --classes 100 --count 100000 --size "
      "224");
  command
      .add_option("DIR", options.folder,
                  "The folder to make, with train/CLASS/NAME.jpg and "
                  "val/CLASS/NAME.jpg: it must not exist, or be empty")
      ->type_name("");
  command.add_option("--classes", options.classes, "Classes")
      ->check(whole_number(2, kMostDrawnClasses))
      ->capture_default_str();
  command
      .add_option("--count", options.count,
                  "Images of train, of all classes together")
      ->check(whole_number(1))
      ->capture_default_str();
  auto* test_count =
      command
          .add_option("--test-count", options.test_count,
                      "Images of val; 0: no val [a tenth of --count, and one "
                      "per class at least]")
          ->check(whole_number(0));
  command
      .add_option("--test-share", options.test_share,
                  "The same as a share of --count, such as 0.1")
      ->check(number(0, 100))
      ->excludes(test_count);
  command
      .add_option("--size", options.size,
                  "Pixels of the shortest side; sides are up to half longer")
      ->check(whole_number(16, 4096))
      ->capture_default_str();
  command.add_option("--format", options.format, "jpeg or png")
      ->check(one_of("format", kFormats))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "The same seed, the same images")
      ->check(whole_number(0))
      ->capture_default_str();
}

void complete_make_images_options(MakeImagesOptions& options, int cores) {
  if (options.folder.empty())
    throw InvalidArgument(
        "make-images needs the folder to make: lockstep data make-images DIR");
  options.threads = std::max(cores, 1);
  options.test_count = test_count_of(options);
  const auto check = [&](const char* flag, std::int64_t count) {
    if (count < options.classes)
      throw InvalidArgument(
          fmt::format("{} is {}, but each of {} classes needs an image: give "
                      "{} or more",
                      flag, count, options.classes, options.classes));
  };
  check("--count", options.count);
  if (*options.test_count > 0)
    check(options.test_share ? "--test-share of --count" : "--test-count",
          *options.test_count);
}

std::string make_images(const MakeImagesOptions& options) {
  const auto fail = [&](const std::string& reason) {
    return Error(fmt::format(
        "{}\n  next:    make room, or name a folder that can be written; {} is "
        "as before",
        reason, options.folder));
  };
  try {
    const fs::path target = resolved(options.folder);
    refuse_used_folder(target);
    refuse_fixed_folder(target);
    const std::int64_t bytes = fill_folder(options, target);
    return fmt::format(
        "{} synthetic images for training and {} for validation, of {} "
        "classes, are in {}: {:.1f} MB\n",
        with_thousands(options.count), with_thousands(*options.test_count),
        options.classes, options.folder, static_cast<double>(bytes) / 1e6);
  } catch (const SystemError& error) {
    throw fail(error.what());
  } catch (const fs::filesystem_error& error) {
    throw fail(fmt::format("cannot make {}: {}", error.path1().string(),
                           error.code().message()));
  }
}

}  // namespace lockstep
