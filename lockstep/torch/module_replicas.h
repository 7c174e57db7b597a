// Copies of a module for the devices of one process, kept in step with it.
//
// On the device of the module itself a copy's parameters are the module's own
// memory; elsewhere they are copied when they have changed, which is told by
// their version and their address: writing to Tensor::data() hides a change of
// values from a copy on another device. Buffers, such as BatchNorm's running
// statistics, are the module's own memory in the first copy, and copied each
// time to the others: a pass of those changes them, which no version tells, and
// that is forgotten.
//
// The module itself makes no pass: hooks on its parameters are not the copies'.
//
// Threads: single-threaded; passes of copies may run side by side between two
//          calls.
// Errors:  InvalidArgument when a copy has other parameters or buffers than the
//          module, or the module itself has other ones than it had.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace lockstep {

class ModuleReplicas {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;

  // Moves the module to devices[0]. `make` gives the copies, each new, before
  // they are moved; without it they are module->clone(), which modules that
  // derive from torch::nn::Cloneable have.
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module,
                 std::span<const at::Device> devices, const Factory& make = {});

  // Brings all copies in step with the module: parameters, buffers, what
  // requires a gradient, and training mode. Costs a look at each parameter and
  // a copy of each buffer where nothing has changed.
  void refresh();

  const std::shared_ptr<torch::nn::Module>& operator[](int replica) const {
    return copies_[static_cast<std::size_t>(replica)].module;
  }

  // The module's, of which one that is registered twice counts once, and the
  // same ones of a copy, in the same order.
  const std::vector<at::Tensor>& parameters() const {
    return original_.parameters;
  }
  const std::vector<at::Tensor>& parameters(int replica) const {
    return copies_[static_cast<std::size_t>(replica)].parameters;
  }

  // Bytes of memory that a copy does not share with the module; those of the
  // module for the first.
  std::size_t bytes_on(int replica) const;

 private:
  // What was copied last, and into what.
  struct Seen {
    const void* address = nullptr;
    std::int64_t version = 0;
    std::int64_t copy_version = 0;
  };
  struct Parts {
    explicit Parts(std::shared_ptr<torch::nn::Module> whole);

    std::shared_ptr<torch::nn::Module> module;
    std::vector<std::shared_ptr<torch::nn::Module>> submodules;
    std::vector<at::Tensor> parameters, buffers;
    std::vector<Seen> seen;  // by parameter
  };

  void check_that_nothing_came_or_went(const Parts& now) const;
  void refresh_parameters(Parts& copy) const;
  void refresh_buffers(const Parts& copy) const;
  void refresh_modes(const Parts& copy) const;

  Parts original_;
  std::vector<Parts> copies_;
};

// Gives `to` the elements of `from`, unless `seen`, a ModuleReplicas::Seen of
// the two, says that it has them.
void copy_if_changed(const at::Tensor& from, const at::Tensor& to, auto& seen) {
  if (from.const_data_ptr() == seen.address &&
      from._version() == seen.version && to._version() == seen.copy_version)
    return;
  to.copy_(from, /*non_blocking=*/true);
  seen = {from.const_data_ptr(), from._version(), to._version()};
}

}  // namespace lockstep
