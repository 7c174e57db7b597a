// Tensors as files of raw elements, with which golden tests exchange data with
// PyTorch: numpy's tofile() and torch.from_file() on the other side.
//
// Errors:  std::runtime_error for a file that is too short or cannot be
//          written.
#pragma once

#include <torch/types.h>

#include <fstream>
#include <stdexcept>
#include <string>

namespace lockstep {

inline at::Tensor read_tensor(const std::string& path, at::IntArrayRef sizes,
                              at::ScalarType type = at::kFloat) {
  at::Tensor tensor = torch::empty(sizes, type);
  std::ifstream file(path, std::ios::binary);
  const auto bytes = static_cast<std::streamsize>(tensor.nbytes());
  file.read(static_cast<char*>(tensor.data_ptr()), bytes);
  if (file.gcount() != bytes)
    throw std::runtime_error(path + " has fewer than " + std::to_string(bytes) +
                             " bytes");
  return tensor;
}

inline void write_tensor(const std::string& path, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(dense.const_data_ptr()),
             static_cast<std::streamsize>(dense.nbytes()));
  file.close();
  if (!file) throw std::runtime_error(path + " could not be written");
}

}  // namespace lockstep
