// Remembers a module's parameters as they were when it was wrapped, to detect
// changes: the gradients of changed parameters would silently no longer be
// reduced. Remembers the module's buffers, too, which may change: a forward
// pass may register a buffer that all ranks are to have from then on.
//
// check() runs before every forward pass, so it reads parameters in the module
// itself, without building lists or names: a few reads each.
//
// Threads: single-threaded.
// Errors:  see check().
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class ModuleSnapshot {
 public:
  explicit ModuleSnapshot(const torch::nn::Module& module);

  // InvalidArgument naming the first parameter that was added, removed or
  // replaced, or whose shape, type, device or requires_grad changed. A module
  // in which no parameter requires a gradient now may pass: a program freezes
  // its discriminator while it trains its generator.
  void check(const torch::nn::Module& module) const;

  // The module's buffers as of the last call of renew_buffers(), and whether
  // `now` are these: else some were added, removed or replaced since.
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  bool has_buffers(const std::vector<at::Tensor>& now) const;
  void renew_buffers(std::vector<at::Tensor> now) { buffers_ = std::move(now); }

 private:
  struct Entry {
    at::Tensor tensor;
    at::Device device;
    at::ScalarType type;
    bool requires_grad;
    // Index of its sizes in sizes_.
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
  std::vector<std::int64_t> sizes_;  // of all parameters, concatenated
  std::vector<std::string> names_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep
