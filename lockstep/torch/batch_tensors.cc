#include "lockstep/torch/batch_tensors.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>

#include <memory>
#include <utility>

namespace lockstep {

BatchTensors as_tensors(Batch batch) {
  const auto owner = std::make_shared<Batch>(std::move(batch));
  const auto keep = [owner](void*) {};
  const auto [channels, height, width] = owner->shape();
  return {.images = at::from_blob(owner->images().data(),
                                  {owner->count(), channels, height, width},
                                  keep, at::kFloat),
          .labels = at::from_blob(owner->labels().data(), {owner->count()},
                                  keep, at::kLong)};
}

BatchTensors aligned_tensors(Batch batch) {
  const BatchTensors borrowed = as_tensors(std::move(batch));
  return {borrowed.images.clone(), borrowed.labels.clone()};
}

}  // namespace lockstep
