// The loader's batches on a device, by way of pixels where their source has
// such: they are a quarter of the bytes, and the device makes numbers of them.
//
//     DeviceBatches batches(samples, device);
//     Loader loader(samples, order, {.elements = batches.elements()});
//     while (auto next = loader.next(patience))
//       step(batches.copy(*std::move(next)));
//
// Numbers are taken from the source's table, not computed anew: they have the
// bits that they have on the CPU, whatever the device makes of a division.
//
// Threads: an object belongs to one thread at a time.
// Errors:  InvalidArgument for batches of other elements; what LibTorch throws
//          where memory is short.
// See docs/design/nccl.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include "lockstep/data/loader.h"
#include "lockstep/data/sample_source.h"
#include "lockstep/torch/batch_tensors.h"
#include "lockstep/torch/device_copies.h"

namespace lockstep {

class DeviceBatches {
 public:
  // Of samples of `source`; images are stored in `format`.
  DeviceBatches(const SampleSource& source, c10::Device device,
                at::MemoryFormat format = at::MemoryFormat::Contiguous);

  c10::Device device() const { return device_; }

  // What the loader is to hand out.
  ImageElements elements() const;

  // The batch on the device, with images in float32: there before what the
  // current stream is given from now on. Returns before it is; its memory goes
  // back to the loader at once. On the CPU these are aligned_tensors().
  BatchTensors copy(Batch batch);

  // The same for images; labels stay on the host.
  BatchTensors copy_images(Batch batch);

 private:
  at::Tensor on_device(const at::Tensor& images);

  c10::Device device_;
  at::MemoryFormat format_;
  CopiesToDevice copies_;
  // On the device, where it makes numbers of pixels: all channels' levels, and
  // the places where those of each begin.
  at::Tensor levels_;
  at::Tensor begins_;
};

}  // namespace lockstep
