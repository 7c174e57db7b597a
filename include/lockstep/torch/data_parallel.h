// One process, several devices: a module that splits each batch across them.
//
//     auto model = lockstep::DataParallel(Net(), {.devices = {at::kCUDA, …}});
//     torch::optim::SGD optimizer(model.parameters(), 0.01);
//     loss_of(model(input), target).backward();
//     optimizer.step();
//
// Works as PyTorch's class of this name: the tensors among the arguments are
// split along their first dimension, each device's replica of the module
// computes on its piece, the outputs are joined on the first device (options
// name another dimension and another device), and backward() adds up the
// gradients there. 30 samples on 2 devices are 15 and 15, on 3 are 10, 10 and
// 10, on 4 are 8, 8, 8 and 6. Every replica computes in its own thread, forward
// and backward. Replicas live as long as the wrapper, and each call updates
// them, which costs next to nothing where nothing has changed. A call updates
// parameters, buffers, requires_grad and training modes, and nothing else: a
// member that forward() reads, or a layer's options, such as a dropout's
// probability, stays as it was in the replicas until renew_replicas(). (PyTorch
// copies all of a module in each call.)
//
// A device may be listed several times: {at::kCPU, at::kCPU} are two slots of
// the CPU, which share the module's parameters and divide the caller's compute
// threads.
//
// Replicas compute, the module itself does not: hooks on its parameters see the
// summed gradients, and values that forward() stores in other members of a
// replica are lost. Changes to buffers are lost except the first replica's, and
// the next call overwrites the others' buffers: a graph that needs the values
// of a buffer which forward() changes is for a backward() before that call. All
// replicas' dropout draws from one generator of LibTorch's, in an order that
// varies from run to run.
//
// Threads: single-threaded: passes must not overlap. The wrapper may be moved,
//          except during a pass, and may be destroyed before backward().
// Errors:  the constructor: InvalidArgument for a null module and for one that
//          cannot be copied. A pass: InvalidArgument for arguments without
//          tensors or of different lengths, and for outputs that cannot be
//          joined; otherwise what a replica throws; of several, the first
//          replica's.
// Source:  torch.nn.DataParallel.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {
class DeviceThreads;
}  // namespace lockstep

namespace lockstep::data_parallel {

// Finds the tensors in a module's arguments and outputs: in tensors, tuples,
// pairs, arrays, vectors, optionals and maps of them, and in types with a
// for_each_tensor(value, visit) in their namespace. It skips all other values,
// and undefined tensors.
//
// Calls visit(tensor) for each tensor, in order; it may replace them. Throws
// what `visit` throws.
template <class Value, class Visit>
void for_each_tensor(Value& /*value*/, const Visit& /*visit*/) {}

template <class Visit>
void for_each_tensor(at::Tensor& tensor, const Visit& visit) {
  if (tensor.defined()) visit(tensor);
}

template <class Value, class Visit>
void for_each_tensor(std::vector<Value>& values, const Visit& visit);
template <class Value, std::size_t kCount, class Visit>
void for_each_tensor(std::array<Value, kCount>& values, const Visit& visit);
template <class Key, class Value, class Visit>
void for_each_tensor(std::map<Key, Value>& values, const Visit& visit);
template <class Value, class Visit>
void for_each_tensor(std::optional<Value>& value, const Visit& visit);
template <class... Values, class Visit>
void for_each_tensor(std::tuple<Values...>& values, const Visit& visit);
template <class First, class Second, class Visit>
void for_each_tensor(std::pair<First, Second>& values, const Visit& visit);

template <class Value, class Visit>
void for_each_tensor(std::vector<Value>& values, const Visit& visit) {
  if constexpr (!std::is_same_v<Value, bool>)
    for (Value& value : values) for_each_tensor(value, visit);
}

template <class Value, std::size_t kCount, class Visit>
void for_each_tensor(std::array<Value, kCount>& values, const Visit& visit) {
  for (Value& value : values) for_each_tensor(value, visit);
}

template <class Key, class Value, class Visit>
void for_each_tensor(std::map<Key, Value>& values, const Visit& visit) {
  for (auto& [key, value] : values) for_each_tensor(value, visit);
}

template <class Value, class Visit>
void for_each_tensor(std::optional<Value>& value, const Visit& visit) {
  if (value) for_each_tensor(*value, visit);
}

template <class... Values, class Visit>
void for_each_tensor(std::tuple<Values...>& values, const Visit& visit) {
  std::apply([&](Values&... each) { (for_each_tensor(each, visit), ...); },
             values);
}

template <class First, class Second, class Visit>
void for_each_tensor(std::pair<First, Second>& values, const Visit& visit) {
  for_each_tensor(values.first, visit);
  for_each_tensor(values.second, visit);
}

template <class Value>
std::vector<at::Tensor> tensors_in(Value& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value,
                  [&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Replaces the tensors in `value` by `tensors`, of the same number.
template <class Value>
void replace_tensors(Value& value, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  for_each_tensor(value, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

class ModuleReplicas;
struct PassMemory;

struct DataParallelOptions {
  // The first holds the module; each has a replica. When empty: all CUDA
  // devices, or on a machine without them one slot of the CPU per compute
  // thread of LibTorch.
  std::vector<at::Device> devices{};
  // The dimension along which inputs are split and outputs joined: the batch. A
  // negative one counts from each tensor's last dimension. Outputs without
  // dimensions become a vector.
  std::int64_t dim = 0;
  // Where outputs are joined; the first device when empty.
  std::optional<at::Device> output_device{};
  // Makes another module like the given one, for a device. Without it the
  // module is cloned, which requires that it derives from torch::nn::Cloneable.
  std::function<std::shared_ptr<torch::nn::Module>()> factory{};
};

// Bytes on a device: of its replica (on the first device the module itself,
// elsewhere only memory that the module does not share), of gradients, and of
// the last pass's inputs and outputs.
struct DeviceMemory {
  at::Device device;
  std::size_t replica_bytes = 0;
  std::size_t gradient_bytes = 0;
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
};

// The part of DataParallel that does not depend on the module's type.
class DataParallelReplicas {
 public:
  // Runs a replica on its pieces, in its thread, and returns its outputs, the
  // same number for all replicas.
  using Forward = std::function<std::vector<at::Tensor>(
      int replica, const std::vector<at::Tensor>& pieces)>;

  DataParallelReplicas(std::shared_ptr<torch::nn::Module> module,
                       DataParallelOptions options);

  const std::vector<at::Device>& devices() const { return devices_; }
  torch::nn::Module& replica(int index) const;
  // Copies the module anew.
  void renew();

  // The pieces of `inputs`, by replica. A small batch gives fewer pieces than
  // devices.
  std::vector<std::vector<at::Tensor>> scatter_all(
      const std::vector<at::Tensor>& inputs) const;

  // Updates the replicas, runs a pass over `pieces`, by replica, and joins its
  // outputs as the options say.
  std::vector<at::Tensor> apply(std::vector<std::vector<at::Tensor>> pieces,
                                Forward forward);

  std::vector<DeviceMemory> memory() const;

  // Of the module, as DataParallel's.
  std::vector<at::Tensor> parameters() const;
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::vector<at::Device> devices_;
  std::int64_t dim_;
  std::optional<at::Device> output_device_;
  std::function<std::shared_ptr<torch::nn::Module>()> factory_;
  std::shared_ptr<DeviceThreads> threads_;
  std::shared_ptr<ModuleReplicas> replicas_;
  std::shared_ptr<std::vector<PassMemory>> last_pass_;
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

  // A module that the caller keeps does not compile, as with
  // DistributedDataParallel.
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
  // replica. The result has forward()'s type, with joined tensors; its other
  // values are the first replica's.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    using All = std::tuple<std::decay_t<Arguments>...>;
    using Output =
        decltype(module_->forward(std::declval<std::decay_t<Arguments>&>()...));
    All all(std::forward<Arguments>(arguments)...);
    auto inputs = replicas_.scatter_all(tensors_in(all));
    std::vector<std::optional<std::decay_t<Output>>> outputs(inputs.size());
    const auto run = [&](int replica, const std::vector<at::Tensor>& pieces) {
      All own = all;
      replace_tensors(own, pieces);
      auto& module = static_cast<Module&>(replicas_.replica(replica));
      auto& output = outputs[static_cast<std::size_t>(replica)];
      output.emplace(std::apply(
          [&](auto&... each) { return module.forward(each...); }, own));
      return tensors_in(*output);
    };
    const auto joined = replicas_.apply(std::move(inputs), run);
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
  // As DistributedDataParallel's: a parameter with several names is listed
  // once.
  std::vector<at::Tensor> parameters() const { return replicas_.parameters(); }
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const {
    return replicas_.named_parameters();
  }
  void train() { module_->train(); }
  void eval() { module_->eval(); }
  void zero_grad() { module_->zero_grad(); }

  // Makes the replicas anew, as the constructor does: call it when anything
  // else than a parameter, a buffer or a mode of the module has changed. Where
  // `.factory` makes replicas, it must apply that change.
  void renew_replicas() { replicas_.renew(); }

  const std::vector<at::Device>& devices() const { return replicas_.devices(); }

  // One entry per device, in their order.
  std::vector<DeviceMemory> memory() const { return replicas_.memory(); }

  // Reads parameters and buffers into their present memory, which replicas
  // share; torch::load() calls it.
  void load(torch::serialize::InputArchive& archive) {
    replicas_.load(archive);
  }

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
  model.load(archive);
  return archive;
}

}  // namespace lockstep::data_parallel
