// What a module's parameters were when it was wrapped, to notice that they have
// changed: their gradients would be reduced no more, silently.
//
// Threads: single-threaded.
// Errors:  see check().
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace lockstep {

class ModuleSnapshot {
 public:
  explicit ModuleSnapshot(const torch::nn::Module& module);

  // InvalidArgument naming the first parameter that was added, removed or
  // replaced, or whose shape, type, device or requires_grad is another.
  void check(const torch::nn::Module& module) const;

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;
    bool requires_grad;
    at::ScalarType type;
    at::Device device;
    std::vector<std::int64_t> sizes;
  };
  static std::string change_of(const Entry& entry);
  [[noreturn]] void refuse_other_parameters(
      const torch::nn::Module& module) const;

  std::vector<Entry> entries_;
};

}  // namespace lockstep
