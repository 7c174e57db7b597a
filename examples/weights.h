// A checksum of a module's parameters and buffers: copies that differ in a
// single bit have different checksums, except for a collision of 64 bits.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>

// FNV-1a (Fowler, Noll and Vo) over the bytes of parameters and buffers.
inline std::uint64_t checksum(const torch::nn::Module& module) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor dense = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(dense.data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i)
      hash = (hash ^ bytes[i]) * 0x100000001b3;
  };
  for (const at::Tensor& tensor : module.parameters()) add(tensor);
  for (const at::Tensor& tensor : module.buffers()) add(tensor);
  return hash;
}

inline void print_weights(const char* name, const torch::nn::Module& module) {
  std::printf("weights of the %s: %016jx\n", name,
              static_cast<std::uintmax_t>(checksum(module)));
}
