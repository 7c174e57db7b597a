// One process, several devices: a module that divides each batch over them.
//
//     auto model = lockstep::DataParallel(Net(), {.devices = {at::kCUDA, …}});
//     torch::optim::SGD optimizer(model.parameters(), 0.01);
//     loss_of(model(input), target).backward();
//     optimizer.step();
//
// As PyTorch's class of this name: the tensors among the arguments are cut
// along their first dimension, each device's replica of the module computes on
// its piece, the outputs are joined on the first device (options name another
// dimension and another device), and in backward()
// gradients are added up there. 30 samples on 2 devices are 15 and 15, on 3 are
// 10, 10 and 10, on 4 are 8, 8, 8 and 6. Every replica computes in a thread of
// its own, forwards and backwards. Replicas live as long as the wrapper, and
// are brought up to date at each call, which costs next to nothing where
// nothing has changed.
//
// A device may be there several times: {at::kCPU, at::kCPU} are two slots of
// the CPU, which share the module's parameters and divide the caller's compute
// threads.
//
// Replicas compute, the module itself does not: hooks on its parameters see
// gradients that are added up, and what forward() leaves in other members of a
// replica is lost. What replicas do to buffers is forgotten but for the first
// one's. Dropout draws from one generator of LibTorch's for all, in
// an order that is not repeated from run to run.
//
// Threads: single-threaded: passes are not to overlap. The wrapper may be
//          moved, but not during a pass, and may be gone before backward().
// Errors:  InvalidArgument when it is made for no devices or a module that
//          cannot be copied; from a pass for arguments without tensors or of
//          different lengths, and for outputs that cannot be joined. What a
//          replica throws; of several, the first replica's.
// Source:  torch.nn.DataParallel.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/torch/device_threads.h"
#include "lockstep/torch/distinct_parameters.h"
#include "lockstep/torch/load_in_place.h"
#include "lockstep/torch/module_replicas.h"
#include "lockstep/torch/parallel_apply.h"
#include "lockstep/torch/tensors_in.h"

namespace lockstep {

struct DataParallelOptions {
  // The first holds the module; every one has a replica. All CUDA devices when
  // empty, or where there are none as many slots of the CPU as LibTorch has
  // compute threads here.
  std::vector<at::Device> devices{};
  // The dimension along which inputs are cut and outputs joined: the batch. A
  // negative one counts from each tensor's last. Outputs without dimensions
  // become a vector.
  std::int64_t dim = 0;
  // Where outputs are joined; the first device when empty.
  std::optional<at::Device> output_device{};
  // Makes another module like the given one, for a device. Without it, modules
  // are cloned, which they can be if they derive from torch::nn::Cloneable.
  ModuleReplicas::Factory factory{};
};

// Bytes on a device: of its replica, which on the first is the module itself
// and elsewhere only what is not the module's memory, of gradients, and of what
// the last pass took in and gave out.
struct DeviceMemory {
  at::Device device;
  std::size_t replica_bytes = 0;
  std::size_t gradient_bytes = 0;
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
};

// What DataParallel does that does not depend on the module's type.
class DataParallelReplicas {
 public:
  DataParallelReplicas(std::shared_ptr<torch::nn::Module> module,
                       DataParallelOptions options);

  const std::vector<at::Device>& devices() const { return devices_; }
  torch::nn::Module& replica(int index) const { return *(*replicas_)[index]; }

  // Cuts `inputs`: by replica. Fewer than there are devices where a batch is
  // small.
  std::vector<std::vector<at::Tensor>> scatter_all(
      const std::vector<at::Tensor>& inputs) const;

  // Brings replicas up to date and runs the pass, and joins its outputs as the
  // options say.
  std::vector<at::Tensor> apply(DevicePass pass);

  std::vector<DeviceMemory> memory() const;

 private:
  std::vector<at::Device> devices_;
  std::int64_t dim_;
  std::optional<at::Device> output_device_;
  std::shared_ptr<DeviceThreads> threads_;
  std::shared_ptr<ModuleReplicas> replicas_;
  std::vector<PassMemory> last_pass_;
};

// `Module` is deduced as by DistributedDataParallel.
template <std::derived_from<torch::nn::Module> Module>
class DataParallel {
 public:
  explicit DataParallel(std::shared_ptr<Module> module,
                        const DataParallelOptions& options = {})
      : module_(std::move(module)), replicas_(module_, options) {}

  explicit DataParallel(Module&& module,
                        const DataParallelOptions& options = {})
      : DataParallel(std::make_shared<Module>(std::move(module)), options) {}

  // A module that the caller keeps does not compile, as there.
  explicit DataParallel(const Module& /*module*/,
                        const DataParallelOptions& /*options*/ = {}) {
    static_assert(sizeof(Module) == 0,
                  "DataParallel(net) would train a copy of net: write "
                  "DataParallel(std::move(net)), or let net be a "
                  "std::shared_ptr or a holder");
  }

  explicit DataParallel(const torch::nn::ModuleHolder<Module>& holder,
                        const DataParallelOptions& options = {})
      : DataParallel(holder ? holder.ptr() : std::shared_ptr<Module>(),
                     options) {}

  // module->forward(arguments…). Arguments without tensors are copied for each
  // replica. The result is of forward()'s type, with joined tensors; what else
  // it holds is the first replica's.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    using All = std::tuple<std::decay_t<Arguments>...>;
    using Output =
        decltype(module_->forward(std::declval<std::decay_t<Arguments>&>()...));
    All all(std::forward<Arguments>(arguments)...);
    DevicePass pass{.inputs = replicas_.scatter_all(tensors_in(all)),
                    .forward = {}};
    std::vector<std::optional<std::decay_t<Output>>> outputs(
        pass.inputs.size());
    pass.forward = [&](int replica, const std::vector<at::Tensor>& pieces) {
      All own = all;
      replace_tensors(own, pieces);
      auto& module = static_cast<Module&>(replicas_.replica(replica));
      auto& output = outputs[static_cast<std::size_t>(replica)];
      output.emplace(std::apply(
          [&](auto&... each) { return module.forward(each...); }, own));
      return tensors_in(*output);
    };
    const auto joined = replicas_.apply(std::move(pass));
    replace_tensors(*outputs[0], joined);
    return *std::move(outputs[0]);
  }
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // The module itself: what is trained and saved.
  const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  // As DistributedDataParallel's: one that has several names is there once.
  std::vector<at::Tensor> parameters() const {
    return distinct_parameters(*module_);
  }
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const {
    return distinct_named_parameters(*module_);
  }
  void train() { module_->train(); }
  void eval() { module_->eval(); }
  void zero_grad() { module_->zero_grad(); }

  const std::vector<at::Device>& devices() const { return replicas_.devices(); }

  // By device, in their order.
  std::vector<DeviceMemory> memory() const { return replicas_.memory(); }

 private:
  std::shared_ptr<Module> module_;
  DataParallelReplicas replicas_;
};

// torch::save(model, path) and torch::load(model, path): the module's own
// parameters and buffers.
template <class Module>
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const DataParallel<Module>& model) {
  return archive << std::shared_ptr<torch::nn::Module>(model.module());
}
template <class Module>
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, DataParallel<Module>& model) {
  load_in_place(archive, *model.module());
  return archive;
}

}  // namespace lockstep
