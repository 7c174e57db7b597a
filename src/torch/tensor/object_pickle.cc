#include "src/torch/tensor/object_pickle.h"

#include <c10/core/GradMode.h>
#include <torch/serialize.h>

namespace lockstep {
namespace {

bool lies_in_more_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         tensor.has_storage() && tensor.storage().nbytes() > tensor.nbytes();
}

at::Tensor with_own_memory(const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor copy = tensor.clone();
  if (tensor.requires_grad()) copy.set_requires_grad(true);
  return copy;
}

// The object itself, if all its tensors fill their memory.
c10::IValue without_other_memory(const c10::IValue& object) {
  // deepcopy() takes what it finds here for the copies.
  c10::IValue::HashIdentityIValueMap copies;
  bool copied = false;
  object.visit([&](const c10::IValue& part) {
    if (!part.isTensor() || copies.contains(part)) return false;
    const at::Tensor& tensor = part.toTensor();
    const bool copies_it = lies_in_more_memory(tensor);
    copies.emplace(part, copies_it ? with_own_memory(tensor) : part);
    copied = copied || copies_it;
    return false;
  });
  return copied ? object.deepcopy(copies) : object;
}

}  // namespace

std::vector<char> pickle(const c10::IValue& object) {
  return torch::pickle_save(without_other_memory(object));
}

c10::IValue unpickle(std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  return torch::pickle_load({begin, begin + bytes.size()});
}

}  // namespace lockstep
