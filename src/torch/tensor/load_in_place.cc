#include "lockstep/torch/load_in_place.h"

#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A tensor of a module, and the memory that it had before it was loaded.
struct Kept {
  at::Tensor tensor;
  at::Tensor memory;
};

std::vector<Kept> tensors_of(const torch::nn::Module& module) {
  std::vector<Kept> kept;
  for (const auto& tensors : {module.parameters(), module.buffers()})
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined() && tensor.has_storage())
        kept.push_back({tensor, tensor.variable_data()});
  return kept;
}

void bring_back(std::vector<Kept>& kept) {
  for (Kept& one : kept) one.tensor.set_data(one.memory);
}

void check_same_kind(const Kept& one) {
  if (one.tensor.sizes() == one.memory.sizes() &&
      one.tensor.scalar_type() == one.memory.scalar_type())
    return;
  throw InvalidArgument(
      c10::str("cannot load a tensor of ", one.tensor.sizes(), " of type ",
               one.tensor.scalar_type(), " into one of ", one.memory.sizes(),
               " of type ", one.memory.scalar_type(),
               "\n  next:    load a file that a module with the same layers "
               "has saved"));
}

}  // namespace

void load_in_place(torch::serialize::InputArchive& archive,
                   torch::nn::Module& module) {
  std::vector<Kept> kept = tensors_of(module);
  const at::NoGradGuard no_grad;
  try {
    module.load(archive);
    for (const Kept& one : kept) check_same_kind(one);
  } catch (...) {
    bring_back(kept);
    throw;
  }
  for (Kept& one : kept)
    if (!one.tensor.is_alias_of(one.memory)) one.memory.copy_(one.tensor);
  bring_back(kept);
}

}  // namespace lockstep
