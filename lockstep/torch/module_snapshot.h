// What a module's parameters were when it was wrapped, to notice that they have
// changed: their gradients would be reduced no more, silently.
//
// check() precedes every forward pass, so it looks at parameters where the
// module has them, without a list or a name of its own: a few reads each.
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
  // replaced, or whose shape, type, device or requires_grad is another. A
  // module of which no parameter requires a gradient for now may pass: a
  // program that trains a generator freezes its discriminator meanwhile.
  void check(const torch::nn::Module& module) const;

 private:
  struct Entry {
    at::Tensor tensor;
    at::Device device;
    at::ScalarType type;
    bool requires_grad;
    // Where sizes_ has its sizes.
    std::size_t sizes_begin;
    std::size_t dimensions;
  };
  at::IntArrayRef sizes_of(const Entry& entry) const;
  bool is_unchanged(const Entry& entry, bool frozen) const;
  bool nothing_learns() const;
  std::string change_of(const Entry& entry) const;
  bool matches(const torch::nn::Module& module, std::size_t& next) const;
  [[noreturn]] void refuse_other_parameters(
      const torch::nn::Module& module) const;

  // In the order of Module::parameters().
  std::vector<Entry> entries_;
  std::vector<std::int64_t> sizes_;  // of all, one after the other
  std::vector<std::string> names_;
};

}  // namespace lockstep
