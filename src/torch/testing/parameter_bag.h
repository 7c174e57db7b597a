// Parameters that a pass may use in any selection and order: the gradient of
// each is the factor of its use.
//
// Threads: single-threaded.
#pragma once

#include <string>
#include <vector>

#include "src/torch/gradient/reducer.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {

struct ParameterBag : torch::nn::Module {
  explicit ParameterBag(const std::string& letters = "abc") {
    for (const char letter : letters)
      register_parameter(std::string(1, letter), wave({4}, letter));
  }

  at::Tensor operator[](char letter) const {
    return named_parameters()[std::string(1, letter)];
  }

  // A sum whose backward pass brings gradients in the order of `letters`.
  at::Tensor forward(const std::string& letters, double factor) {
    at::Tensor chain = torch::zeros({});
    for (auto letter = letters.rbegin(); letter != letters.rend(); ++letter)
      chain = chain + ((*this)[*letter] * factor).sum();
    return chain;
  }

  // Every .grad as one number; NaN for an undefined one.
  std::vector<double> gradients() const {
    std::vector<double> numbers;
    for (const at::Tensor& tensor : parameters()) {
      const at::Tensor& gradient = tensor.grad();
      if (gradient.defined() && !(gradient == gradient[0]).all().item<bool>())
        throw std::runtime_error("a gradient whose elements differ");
      numbers.push_back(gradient.defined()
                            ? gradient[0].item<double>()
                            : std::numeric_limits<double>::quiet_NaN());
    }
    return numbers;
  }
};

inline std::vector<NamedParameter> named_parameters_of(
    const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters())
    parameters.push_back({item.key(), item.value()});
  return parameters;
}

constexpr ReducerOptions kBucketAParameter{.first_bucket_bytes = 0,
                                           .bucket_bytes = 0};

}  // namespace lockstep
