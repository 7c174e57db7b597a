#include "src/torch/tensor/tensor_lists.h"

#include <map>
#include <tuple>
#include <utility>

namespace lockstep {

std::vector<std::vector<at::Tensor>> by_device_and_type(
    at::TensorList tensors) {
  using Key = std::tuple<at::DeviceType, at::DeviceIndex, at::ScalarType>;
  std::map<Key, std::vector<at::Tensor>> lists;
  for (const at::Tensor& tensor : tensors)
    lists[{tensor.device().type(), tensor.device().index(),
           tensor.scalar_type()}]
        .push_back(tensor);
  std::vector<std::vector<at::Tensor>> in_order;
  for (auto& [key, list] : lists) in_order.push_back(std::move(list));
  return in_order;
}

std::size_t bytes_of(at::TensorList tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace lockstep
