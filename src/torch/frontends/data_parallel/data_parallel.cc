#include "lockstep/torch/data_parallel.h"

#include <string>

#include "lockstep/base/error.h"
#include "src/base/own_process.h"
#include "src/torch/device/device_threads.h"
#include "src/torch/device/replica_devices.h"
#include "src/torch/frontends/data_parallel/module_replicas.h"
#include "src/torch/frontends/data_parallel/parallel_apply.h"
#include "src/torch/tensor/module_tensors.h"

namespace lockstep::data_parallel {
namespace {

std::vector<at::Device> or_all(std::vector<at::Device> devices) {
  return devices.empty() ? all_devices() : devices;
}

const std::shared_ptr<torch::nn::Module>& checked(
    const std::shared_ptr<torch::nn::Module>& module) {
  if (!module)
    throw InvalidArgument(
        "DataParallel: the pointer or holder of the module is empty");
  return module;
}

std::size_t gradient_bytes(const std::vector<at::Tensor>& parameters) {
  std::size_t bytes = 0;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) bytes += parameter.grad().nbytes();
  return bytes;
}

}  // namespace

DataParallelReplicas::DataParallelReplicas(
    std::shared_ptr<torch::nn::Module> module, DataParallelOptions options)
    : devices_(or_all(std::move(options.devices))),
      dim_(options.dim),
      output_device_(options.output_device),
      factory_(std::move(options.factory)),
      threads_(make_shared_in_own_process<DeviceThreads>(
          static_cast<int>(devices_.size()))),
      replicas_(std::make_shared<ModuleReplicas>(checked(module), devices_,
                                                 factory_)),
      last_pass_(std::make_shared<std::vector<PassMemory>>(devices_.size())) {}

// Graphs of earlier passes keep the replicas that they were made by.
void DataParallelReplicas::renew() {
  replicas_ =
      std::make_shared<ModuleReplicas>(replicas_->module(), devices_, factory_);
}

std::vector<at::Tensor> DataParallelReplicas::parameters() const {
  return distinct_parameters(*replicas_->module());
}

torch::OrderedDict<std::string, at::Tensor>
DataParallelReplicas::named_parameters() const {
  return distinct_named_parameters(*replicas_->module());
}

void DataParallelReplicas::load(torch::serialize::InputArchive& archive) {
  load_in_place(archive, *replicas_->module());
}

torch::nn::Module& DataParallelReplicas::replica(int index) const {
  return *(*replicas_)[index];
}

std::vector<std::vector<at::Tensor>> DataParallelReplicas::scatter_all(
    const std::vector<at::Tensor>& inputs) const {
  if (inputs.empty())
    throw InvalidArgument(
        "DataParallel: the arguments hold no tensor to divide over devices"
        "\n  next:    pass the batch as a tensor, or as a tuple, vector or "
        "map of tensors");
  std::vector<std::vector<at::Tensor>> pieces;
  for (const at::Tensor& input : inputs) {
    const auto own = scatter(input, devices_, dim_);
    if (pieces.empty()) pieces.resize(own.size());
    if (input.size(dim_) != inputs[0].size(dim_))
      throw InvalidArgument(
          "DataParallel: an argument has " + std::to_string(input.size(dim_)) +
          " samples where the first has " +
          std::to_string(inputs[0].size(dim_)) +
          "\n  next:    give all tensors the same size in dimension " +
          (dim_ == 0 ? "0, the first" : std::to_string(dim_)) + ", the batch");
    for (std::size_t i = 0; i < own.size(); ++i) pieces[i].push_back(own[i]);
  }
  return pieces;
}

std::vector<at::Tensor> DataParallelReplicas::apply(
    std::vector<std::vector<at::Tensor>> pieces, Forward forward) {
  const DevicePass pass{.inputs = std::move(pieces),
                        .forward = std::move(forward),
                        .dim = dim_,
                        .output_device = output_device_};
  replicas_->refresh();
  return parallel_apply(threads_, replicas_, pass, last_pass_.get());
}

std::vector<DeviceMemory> DataParallelReplicas::memory() const {
  std::vector<DeviceMemory> report;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const int index = static_cast<int>(i);
    const PassMemory pass =
        i < last_pass_->size() ? (*last_pass_)[i] : PassMemory{};
    report.push_back(
        {.device = devices_[i],
         .replica_bytes = replicas_->bytes_on(index),
         .gradient_bytes = gradient_bytes(replicas_->parameters(index)),
         .input_bytes = pass.input_bytes,
         .output_bytes = pass.output_bytes});
  }
  return report;
}

}  // namespace lockstep::data_parallel
