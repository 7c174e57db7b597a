// Copies the loader's batches to a device. Where the source has pixels, pixels
// are copied, a quarter of the bytes, and the device converts them to floats.
//
//     DeviceBatches batches(samples, device);
//     Loader loader(samples, order, {.elements = batches.elements()});
//     while (auto next = loader.next(timeout))
//       step(batches.copy(*std::move(next)));
//
// The device looks the floats up in the source's table and computes nothing:
// they have the same bits as on the CPU, however the device rounds a division.
//
// Threads: an object belongs to one thread at a time.
// Errors:  InvalidArgument for batches of other elements; LibTorch's errors
//          where memory is short.
// See docs/design/nccl.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include <memory>

#include "lockstep/data/loader.h"

namespace lockstep {

// The loader's batches as tensors.
struct BatchTensors {
  // count x channels x height x width: float, or uint8 for a batch of pixels.
  at::Tensor images;
  at::Tensor labels;  // int64, count
};

// Views of the batch's own memory, without a copy: the memory returns to the
// loader when its last tensor is destroyed.
BatchTensors as_tensors(Batch batch);

// Copies in LibTorch's own memory, which LibTorch aligns in the same way in
// every run: the bits of its matrix products may depend on the alignment. The
// batch's memory returns to the loader at once.
BatchTensors aligned_tensors(Batch batch);

class CopiesToDevice;

class DeviceBatches {
 public:
  // For samples of `source`; images are stored in `format`.
  DeviceBatches(const SampleSource& source, c10::Device device,
                at::MemoryFormat format = at::MemoryFormat::Contiguous);

  c10::Device device() const { return device_; }

  // The elements that the loader must deliver.
  ImageElements elements() const;

  // The batch on the device, with images in float32. The copy comes before
  // later work of the current stream; the call returns before it is done. The
  // batch's memory returns to the loader at once. On the CPU these are
  // aligned_tensors().
  BatchTensors copy(Batch batch);

  // The same for images; labels stay on the host.
  BatchTensors copy_images(Batch batch);

 private:
  at::Tensor on_device(const at::Tensor& images);

  c10::Device device_;
  at::MemoryFormat format_;
  std::shared_ptr<CopiesToDevice> copies_;
  // On a device that converts pixels: all channels' levels, and the index at
  // which each channel's levels begin.
  at::Tensor levels_;
  at::Tensor begins_;
};

}  // namespace lockstep
