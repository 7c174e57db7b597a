#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/torch/device_batches.h"

namespace lockstep {
namespace {

at::Tensor images_of(const Batch& batch,
                     const std::function<void(void*)>& keep) {
  const auto [channels, height, width] = batch.shape();
  const std::array<std::int64_t, 4> sizes{batch.count(), channels, height,
                                          width};
  if (batch.elements() == ImageElements::kPixels)
    return at::from_blob(batch.pixels().data(), sizes, keep, at::kByte);
  return at::from_blob(batch.images().data(), sizes, keep, at::kFloat);
}

}  // namespace

BatchTensors as_tensors(Batch batch) {
  const auto owner = std::make_shared<Batch>(std::move(batch));
  const auto keep = [owner](void*) {};
  return {.images = images_of(*owner, keep),
          .labels = at::from_blob(owner->labels().data(), {owner->count()},
                                  keep, at::kLong)};
}

BatchTensors aligned_tensors(Batch batch) {
  const BatchTensors borrowed = as_tensors(std::move(batch));
  return {borrowed.images.clone(), borrowed.labels.clone()};
}

}  // namespace lockstep
