#include "lockstep/data/loader.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "src/data/loader_pass.h"

namespace lockstep {
namespace {

using loader_internal::BatchContents;
using loader_internal::BatchFiller;
using loader_internal::PassWorkers;

struct ImageContents final : BatchContents {
  std::vector<float> images;
  std::vector<std::uint8_t> pixels;
  std::vector<std::int64_t> labels;
};

class ImageFiller final : public BatchFiller {
 public:
  ImageFiller(const SampleSource& source, const LoaderOptions& options)
      : source_(source),
        epoch_(options.epoch),
        elements_(options.elements),
        shape_(source.shape()) {}

  const ImageShape& shape() const { return shape_; }
  ImageElements elements() const { return elements_; }

  std::int64_t size() const override { return source_.size(); }
  std::unique_ptr<BatchContents> make() const override {
    return std::make_unique<ImageContents>();
  }
  void open(BatchContents& contents, std::int64_t count) const override {
    auto& batch = static_cast<ImageContents&>(contents);
    const std::size_t elements = static_cast<std::size_t>(count) * per_image();
    if (elements_ == ImageElements::kPixels)
      batch.pixels.resize(elements);
    else
      batch.images.resize(elements);
    batch.labels.resize(static_cast<std::size_t>(count));
  }
  void read(BatchContents& contents, std::int64_t place,
            std::int64_t index) const override {
    auto& batch = static_cast<ImageContents&>(contents);
    const auto i = static_cast<std::size_t>(place);
    const auto image_in = [&](auto& images) {
      return std::span(images).subspan(i * per_image(), per_image());
    };
    batch.labels[i] =
        elements_ == ImageElements::kPixels
            ? source_.read_pixels(index, epoch_, image_in(batch.pixels))
            : source_.read(index, epoch_, image_in(batch.images));
  }

 private:
  std::size_t per_image() const {
    return static_cast<std::size_t>(shape_[0] * shape_[1] * shape_[2]);
  }

  const SampleSource& source_;
  const std::uint64_t epoch_;
  const ImageElements elements_;
  const ImageShape shape_;
};

void check(const SampleSource& source, ImageElements elements) {
  constexpr std::int64_t kMostOfAnImage = std::int64_t{1} << 40;
  std::int64_t numbers = 1;
  for (const std::int64_t side : source.shape()) {
    if (side < 1 || side > kMostOfAnImage / numbers)
      throw InvalidArgument(fmt::format(
          "cannot load images of the shape {}: each side must be at least 1, "
          "and their product at most {}",
          fmt::join(source.shape(), " x "), kMostOfAnImage));
    numbers *= side;
  }
  if (elements == ImageElements::kPixels && source.levels().empty())
    throw InvalidArgument(
        "cannot load pixels: this source has no pixels\n"
        "  next:    load float32");
}

const ImageFiller& filler_of(const loader_internal::Pass& pass) {
  return static_cast<const ImageFiller&>(pass.filler());
}

ImageContents& contents_of(const loader_internal::Buffer& buffer) {
  return static_cast<ImageContents&>(*buffer.contents);
}

}  // namespace

Batch::Batch(std::shared_ptr<loader_internal::Pass> pass,
             std::unique_ptr<loader_internal::Buffer> buffer)
    : pass_(std::move(pass)), buffer_(std::move(buffer)) {}

Batch::Batch(Batch&& other) noexcept = default;

Batch& Batch::operator=(Batch&& other) noexcept {
  // Swapping passes our memory to the other's destructor, which recycles it.
  std::swap(pass_, other.pass_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

Batch::~Batch() {
  if (buffer_ != nullptr) pass_->recycle(std::move(buffer_));
}

std::int64_t Batch::count() const { return buffer_->count; }
const ImageShape& Batch::shape() const { return filler_of(*pass_).shape(); }
ImageElements Batch::elements() const { return filler_of(*pass_).elements(); }
std::span<float> Batch::images() const { return contents_of(*buffer_).images; }
std::span<std::uint8_t> Batch::pixels() const {
  return contents_of(*buffer_).pixels;
}
std::span<std::int64_t> Batch::labels() const {
  return contents_of(*buffer_).labels;
}

Loader::Loader(const SampleSource& source, std::vector<std::int64_t> indices,
               const LoaderOptions& options) {
  check(source, options.elements);
  workers_ = std::make_unique<PassWorkers>(
      std::make_unique<ImageFiller>(source, options), std::move(indices),
      loader_internal::pass_options(options));
}

Loader::~Loader() = default;

std::optional<Batch> Loader::next(Deadline deadline) {
  loader_internal::Pass& pass = workers_->pass();
  auto buffer = pass.next(deadline);
  if (buffer == nullptr) return std::nullopt;
  return Batch(pass.shared_from_this(), std::move(buffer));
}

std::int64_t Loader::batch_count() const {
  return workers_->pass().batch_count();
}

std::span<const BrokenSample> Loader::broken() const {
  return workers_->pass().broken();
}

std::chrono::nanoseconds Loader::waited() const {
  return workers_->pass().waited();
}

std::int64_t SampleSource::read_pixels(std::int64_t, std::uint64_t,
                                       std::span<std::uint8_t>) const {
  throw InvalidArgument(
      "cannot read pixels: this source has no pixels; use read()");
}

}  // namespace lockstep
