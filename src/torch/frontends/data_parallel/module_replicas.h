// Copies of a module for the devices of one process, kept equal to it.
//
// On the module's own device a copy's parameters share the module's memory;
// elsewhere they are copied when version or memory show a change: a write
// through Tensor::data() does not reach a copy on another device. Buffers, such
// as BatchNorm's running statistics, share the module's memory in the first
// copy. The other copies get them each time, since a pass may change theirs
// without a new version; those changes are lost.
//
// The module itself runs no pass: the copies do not have the hooks on its
// parameters.
//
// Threads: single-threaded; passes of copies may run concurrently between two
//          calls.
// Errors:  InvalidArgument when a copy has other parameters or buffers than the
//          module, or when the module's own have been replaced.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/torch/tensor/tensor_memory.h"

namespace lockstep::data_parallel {

class ModuleReplicas {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;

  // Moves the module to devices[0]. `make` returns a new copy, which is then
  // moved; without it copies come from module->clone(), which requires
  // torch::nn::Cloneable.
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module,
                 std::span<const at::Device> devices, const Factory& make = {});

  // Updates all copies from the module: parameters, buffers, requires_grad and
  // training mode. Where nothing has changed, it costs a comparison per
  // parameter and a copy per buffer.
  void refresh();

  const std::shared_ptr<torch::nn::Module>& module() const {
    return original_.module;
  }
  const std::shared_ptr<torch::nn::Module>& operator[](int replica) const {
    return copies_[static_cast<std::size_t>(replica)].module;
  }

  // The module's parameters, in which one that is registered twice counts once,
  // and a copy's, in the same order.
  const std::vector<at::Tensor>& parameters() const {
    return original_.parameters;
  }
  const std::vector<at::Tensor>& parameters(int replica) const {
    return copies_[static_cast<std::size_t>(replica)].parameters;
  }

  // Bytes that a copy does not share with the module; for the first copy the
  // module's bytes.
  std::size_t bytes_on(int replica) const;

 private:
  // The source and the target of the last copy.
  struct Seen {
    SeenTensor from, to;
  };
  struct Parts {
    explicit Parts(std::shared_ptr<torch::nn::Module> whole);

    std::shared_ptr<torch::nn::Module> module;
    std::vector<std::shared_ptr<torch::nn::Module>> submodules;
    std::vector<at::Tensor> parameters, buffers;
    std::vector<Seen> seen;  // by parameter
  };

  void check_that_nothing_came_or_went(const Parts& now) const;
  void check_buffers(const Parts& copy) const;
  void refresh_parameters(Parts& copy) const;
  void refresh_buffers(const Parts& copy) const;
  void refresh_modes(const Parts& copy) const;

  Parts original_;
  std::vector<Parts> copies_;
};

// Gives `to` the elements of `from`, unless `seen`, a ModuleReplicas::Seen of
// the two, says that it has them already.
void copy_if_changed(const at::Tensor& from, const at::Tensor& to, auto& seen) {
  const auto is_as_seen = [](const at::Tensor& tensor, const SeenTensor& then) {
    return then.is_defined() && then.lies_at(tensor) &&
           version_of(tensor) == then.version();
  };
  // Inference tensors count no writes.
  if (!from.is_inference() && is_as_seen(from, seen.from) &&
      is_as_seen(to, seen.to))
    return;
  to.copy_(from, /*non_blocking=*/true);
  seen = {SeenTensor(from), SeenTensor(to)};
}

}  // namespace lockstep::data_parallel
