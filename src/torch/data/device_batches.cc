// Two kernels convert pixels to floats: one adds to each pixel the index at
// which its channel's levels begin (and stores the sums in the memory format),
// the other looks up the level at that index. They read and write 13 bytes per
// pixel, besides the table, which stays in the cache; computing (x / 255 -
// mean) / deviation takes three kernels and 21 bytes.
#include "lockstep/torch/device_batches.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/torch/device/device_copies.h"
#include "src/torch/device/device_streams.h"

namespace lockstep {
namespace {

constexpr auto kLevels = static_cast<std::int64_t>(kPixelValues);

// A read-only tensor over the caller's memory.
at::Tensor view_of(std::span<const float> numbers) {
  return at::from_blob(const_cast<float*>(numbers.data()),
                       {std::ssize(numbers)}, at::kFloat);
}

// All elements of a tensor without gaps, in storage order.
at::Tensor as_stored(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

}  // namespace

DeviceBatches::DeviceBatches(const SampleSource& source, c10::Device device,
                             at::MemoryFormat format)
    : device_(device),
      format_(format),
      copies_(std::make_shared<CopiesToDevice>(device)) {
  const std::span<const float> levels = source.levels();
  if (device.is_cpu() || levels.empty()) return;
  levels_ = copies_->copy(view_of(levels));
  begins_ = copies_->copy(
      at::arange(0, std::ssize(levels), kLevels, at::kInt).view({-1, 1, 1}));
}

ImageElements DeviceBatches::elements() const {
  return levels_.defined() ? ImageElements::kPixels : ImageElements::kFloat32;
}

BatchTensors DeviceBatches::copy(Batch batch) {
  BatchTensors tensors = copy_images(std::move(batch));
  tensors.labels = copies_->copy(tensors.labels);
  return tensors;
}

BatchTensors DeviceBatches::copy_images(Batch batch) {
  if (batch.elements() != elements())
    throw InvalidArgument(
        "cannot copy a batch to " + device_.str() +
        ": this device expects other elements"
        "\n  next:    give the loader .elements = batches.elements()");
  if (device_.is_cpu()) {
    const BatchTensors aligned = aligned_tensors(std::move(batch));
    return {aligned.images.contiguous(format_), aligned.labels};
  }
  const BatchTensors borrowed = as_tensors(std::move(batch));
  return {on_device(copies_->copy(borrowed.images)), borrowed.labels.clone()};
}

// `images` has the loader's elements, on the device.
at::Tensor DeviceBatches::on_device(const at::Tensor& images) {
  if (!levels_.defined()) return images.contiguous(format_);
  const auto options = images.options().memory_format(format_);
  at::Tensor places = at::empty(images.sizes(), options.dtype(at::kInt));
  at::add_out(places, images, begins_);
  const at::Tensor numbers =
      at::empty(images.sizes(), options.dtype(at::kFloat));
  at::Tensor stored = as_stored(numbers);
  at::index_select_out(stored, levels_, 0, as_stored(places));
  keep_for_current_stream({levels_, begins_});
  return numbers;
}

}  // namespace lockstep
