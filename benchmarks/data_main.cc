// Images per second of this library's decoder and transforms, for the driver
// `data`:
//
//   lockstep_images FILE REQUESTS
//
// FILE is a JPEG in a folder of its own class: FOLDER/CLASS/FILE. Questions:
//
//   decode SECONDS                decodes the file's bytes
//   pixels SECONDS SIDE TEXT      transforms a copy of the decoded image, of
//                                 which SIDE x SIDE pixels are cut out (0: all)
//   numbers SECONDS SIDE TEXT     the same for transforms of floats
//   pipeline SECONDS HOW TEXT     from the file's bytes to floats; HOW: exact
//                                 or scaled
//   folder SECONDS TEXT           ImageFolder::read()
//   loader SECONDS WORKERS TEXT   a Loader of that folder, by the clock
//   difference TEXT               between exact and scaled pixels
//   sum TEXT                      a sum over the pixels that TEXT makes of the
//                                 decoded image
//
// Answers are images per second of a core's time, and how often an image calls
// operator new, and malloc besides, on average.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/requests.h"
#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/transforms.h"
#include "src/data/data_file.h"
#include "src/data/image/image_reader.h"
#include "src/data/transform/draw.h"
#include "src/data/transform/pipeline.h"
#include "src/data/transform/plan.h"

namespace {

// Of this program's only thread.
std::uint64_t news = 0;
std::uint64_t mallocs = 0;

void* counted_new(std::size_t bytes, std::size_t alignment) {
  ++news;
  void* const memory = alignment == 0 ? std::malloc(bytes)
                                      : std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// glibc's own, under the names that stay when a program replaces malloc().
extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): glibc's name
void* __libc_malloc(std::size_t bytes);
void* malloc(std::size_t bytes) {
  ++mallocs;
  return __libc_malloc(bytes);
}
}

void* operator new(std::size_t bytes) { return counted_new(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_new(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace lockstep {
namespace {

using transforms::Operation;

constexpr std::uint64_t kSeed = 1;
constexpr int kWarmUp = 200;  // images, after which memory has grown

// The driver gives this program one core, for what runs in one thread.
class OnAllCores {
 public:
  OnAllCores() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
    sched_setaffinity(0, sizeof all, &all);
  }
  ~OnAllCores() { sched_setaffinity(0, sizeof before_, &before_); }
  OnAllCores(const OnAllCores&) = delete;
  OnAllCores& operator=(const OnAllCores&) = delete;

 private:
  cpu_set_t before_{};
};

double core_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

// Calls `make(i)`, which makes image i, for some seconds.
template <class Make>
std::string rate(double seconds, const Make& make) {
  std::uint64_t index = 0;
  while (index < kWarmUp) make(index++);
  const std::uint64_t first_new = news;
  const std::uint64_t first_malloc = mallocs;
  const double begin = core_seconds();
  double took = 0;
  while (took < seconds) {
    make(index++);
    took = core_seconds() - begin;
  }
  const auto images = static_cast<double>(index - kWarmUp);
  const auto by_new = static_cast<double>(news - first_new);
  const auto by_malloc = static_cast<double>(mallocs - first_malloc) - by_new;
  return fmt::format(
      R"({{"images_per_second": {}, "news": {}, "mallocs": {}}})",
      images / took, by_new / images, by_malloc / images);
}

class Images {
 public:
  explicit Images(const std::string& file)
      : file_(file),
        contents_(read_data_file(file)),
        photo_(decode_image(contents_, file)) {}

  std::string answer(const std::string& request) {
    std::istringstream words(request);
    std::string what;
    double seconds = 0;
    std::int64_t side = 0;
    words >> what;
    if (what != "sum" && what != "difference") words >> seconds;
    std::string how;
    if (what == "pixels" || what == "numbers" || what == "loader")
      words >> side;
    if (what == "pipeline") words >> how;
    std::string text;
    std::getline(words >> std::ws, text);
    if (what == "decode") return decode(seconds);
    if (what == "pixels") return pixels(seconds, Compose(text), cut(side));
    if (what == "numbers") return numbers(seconds, Compose(text), cut(side));
    if (what == "pipeline")
      return pipeline(
          seconds,
          how == "exact" ? DecodeScaling::kExact : DecodeScaling::kScaled,
          Compose(text));
    if (what == "folder") return folder(seconds, Compose(text));
    if (what == "loader") return loader(seconds, side, Compose(text));
    if (what == "difference") return difference(Compose(text));
    if (what == "sum") return sum(Compose(text));
    throw InvalidArgument(fmt::format("unknown question \"{}\"", request));
  }

 private:
  std::filesystem::path folder_of_classes() const {
    return std::filesystem::path(file_).parent_path().parent_path();
  }

  Image cut(std::int64_t side) const {
    if (side == 0) return photo_;
    return Compose(fmt::format("center_crop({})", side))
        .apply_to_pixels(photo_, {});
  }

  void draw(const Compose& compose, const ImageSize& size,
            std::uint64_t index) {
    transforms::draw_all(compose.transforms(), size,
                         {.seed = kSeed, .index = index}, operations_);
  }

  std::string decode(double seconds) {
    return rate(seconds, [&](std::uint64_t) {
      reader_.open(contents_, file_);
      reader_.read(image_);
    });
  }

  std::string pixels(double seconds, const Compose& compose,
                     const Image& image) {
    return rate(seconds, [&](std::uint64_t index) {
      draw(compose, image.size, index);
      image_ = image;
      pipeline_.apply_to_pixels(operations_, image_);
    });
  }

  std::string numbers(double seconds, const Compose& compose,
                      const Image& image) {
    numbers_.resize(image.pixels.size());
    return rate(seconds, [&](std::uint64_t index) {
      draw(compose, image.size, index);
      transforms::apply_to_numbers(operations_, image, numbers_);
    });
  }

  // As ImageFolder::read() does it, without the file. Returns how many of the
  // operations are done.
  std::size_t make_pixels(const Compose& compose, DecodeScaling scaling,
                          std::uint64_t index) {
    const ImageSize size = reader_.open(contents_, file_);
    draw(compose, size, index);
    const auto plan = transforms::plan_decoding(size, scaling, operations_);
    reader_.read(plan.region, plan.denominator, image_);
    return pipeline_.apply_to_pixels(operations_, image_);
  }

  std::string pipeline(double seconds, DecodeScaling scaling,
                       const Compose& compose) {
    return rate(seconds, [&](std::uint64_t index) {
      const std::size_t done = make_pixels(compose, scaling, index);
      numbers_.resize(image_.pixels.size());
      transforms::apply_to_numbers(std::span(operations_).subspan(done), image_,
                                   numbers_);
    });
  }

  std::string difference(const Compose& compose) {
    constexpr std::uint64_t kDraws = 200;
    double squares = 0;
    double pixels = 0;
    int most = 0;
    for (std::uint64_t index = 0; index < kDraws; ++index) {
      make_pixels(compose, DecodeScaling::kExact, index);
      const Image exact = image_;
      make_pixels(compose, DecodeScaling::kScaled, index);
      for (std::size_t i = 0; i < exact.pixels.size(); ++i) {
        const int step = std::abs(exact.pixels[i] - image_.pixels[i]);
        squares += step * step;
        most = std::max(most, step);
      }
      pixels += static_cast<double>(exact.pixels.size());
    }
    return fmt::format(R"({{"root_mean_square": {}, "most": {}}})",
                       std::sqrt(squares / pixels), most);
  }

  std::string loader(double seconds, std::int64_t workers,
                     const Compose& compose) const {
    using Clock = std::chrono::steady_clock;
    const OnAllCores here;  // and so its workers
    const ImageFolder images(folder_of_classes(), compose, {.seed = kSeed});
    Loader loader(images, std::vector<std::int64_t>(1'000'000),
                  {.batch_size = 32, .workers = workers});
    const auto take = [&] { return loader.next(Deadline::never())->count(); };
    for (std::int64_t warm = 0; warm < kWarmUp;) warm += take();
    const auto begin = Clock::now();
    std::chrono::duration<double> took{};
    std::int64_t count = 0;
    while (took.count() < seconds) {
      count += take();
      took = Clock::now() - begin;
    }
    return fmt::format(R"({{"images_per_second": {}}})",
                       static_cast<double>(count) / took.count());
  }

  std::string folder(double seconds, const Compose& compose) const {
    const ImageFolder images(folder_of_classes(), compose, {.seed = kSeed});
    const ImageShape shape = images.shape();
    std::vector<float> into(
        static_cast<std::size_t>(shape[0] * shape[1] * shape[2]));
    // After two passes over the same crops memory need not grow.
    constexpr std::uint64_t kEpochs = kWarmUp / 2;
    return rate(seconds,
                [&](std::uint64_t i) { images.read(0, i % kEpochs, into); });
  }

  std::string sum(const Compose& compose) const {
    const Image made = compose.apply_to_pixels(photo_, {.seed = kSeed});
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < made.pixels.size(); ++i)
      total += made.pixels[i] * (i % 251 + 1);
    return fmt::format(R"({{"sum": {}}})", total);
  }

  std::string file_;
  std::vector<std::byte> contents_;
  Image photo_;
  // Used again, as by a thread that reads.
  ImageReader reader_{};
  transforms::Pipeline pipeline_{};
  std::vector<Operation> operations_{};
  Image image_{};
  std::vector<float> numbers_{};
};

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FILE REQUESTS\n", argv[0]);
    return 2;
  }
  try {
    lockstep::Images images(argv[1]);
    lockstep::answer_requests(argv[2], 0, [&](const std::string& request) {
      return images.answer(request);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
