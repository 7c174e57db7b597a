// Data-parallel training of a module: each rank trains its copy on its share of
// the batch, and all copies stay the same.
//
//     lockstep::init_process_group();
//     auto model = lockstep::DistributedDataParallel(Net());
//     torch::optim::SGD optimizer(model.parameters(), 0.01);
//     …
//     optimizer.zero_grad();
//     loss_of(model(input), target).backward();  // .grad is the average now
//     optimizer.step();
//
// As PyTorch's class of this name (Li et al., "PyTorch Distributed", VLDB
// 2020): the copies start from rank 0's parameters and buffers; gradients are
// averaged while backward() runs, in buckets. The optimizer, the loss and the
// loop stay as they are. .grad lies in the buckets, as with PyTorch's
// gradient_as_bucket_view: clone what must outlive the next backward pass.
//
// Every rank must make the wrapper at the same point of the program, run the
// same number of backward passes, and use every parameter in each; options and
// scopes lift the last two: find_unused_parameters, static_graph, join(). In
// no_sync() nothing is reduced. Forward passes need not be matched, except in
// training mode with gradients on when the module has buffers and they are
// broadcast. A group of one costs nothing, unless it is to reduce_alone. See
// docs/guides/ddp.md.
//
// Threads: single-threaded. The wrapper may be moved, but not during a pass.
// Errors:  when it is made: Mismatch on every rank when their modules differ,
//          InvalidArgument for a module without parameters to train, one with
//          a parameter that cannot be reduced or that is wrapped already.
//          From forward(): InvalidArgument when the module's parameters are not
//          those that were wrapped. From backward(): InvalidArgument on every
//          rank when some rank's parameter got no gradient and should have, and
//          for create_graph = true; what collectives throw.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/torch/ddp/join.h"
#include "lockstep/torch/ddp/replica.h"
#include "lockstep/torch/tensor/distinct_parameters.h"
#include "lockstep/torch/tensor/load_in_place.h"

namespace lockstep {

// `Module` is deduced: from a module, which moves into the wrapper, from a
// shared pointer to one, or from a holder made by TORCH_MODULE.
template <std::derived_from<torch::nn::Module> Module>
class DistributedDataParallel {
 public:
  explicit DistributedDataParallel(
      std::shared_ptr<Module> module,
      const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)),
        replica_(std::make_unique<Replica>(module_, options)) {}

  explicit DistributedDataParallel(
      Module&& module, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(std::make_shared<Module>(std::move(module)),
                                options) {}

  // A module that the caller keeps does not compile: the wrapper would train a
  // copy of it.
  explicit DistributedDataParallel(
      const Module& /*module*/,
      const DistributedDataParallelOptions& /*options*/ = {}) {
    static_assert(sizeof(Module) == 0,
                  "DistributedDataParallel(net) would train a copy of net: "
                  "write DistributedDataParallel(std::move(net)), or let net "
                  "be a std::shared_ptr or a holder");
  }

  explicit DistributedDataParallel(
      const torch::nn::ModuleHolder<Module>& holder,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(
            holder ? holder.ptr() : std::shared_ptr<Module>(), options) {}

  // The module's own forward(), with its arguments and its result.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    replica_->before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // Makes every rank's buffers rank 0's, whatever the options say: to be called
  // before an evaluation, since each rank has gathered running statistics of
  // its own since its last pass. PyTorch does this in the first forward pass
  // after training; here a pass in evaluation mode waits for no rank, so that
  // one rank may evaluate alone. A collective: every rank calls it. Within
  // join() it gives the buffers of the last rank that has data.
  void broadcast_buffers() { replica_->broadcast_buffers(); }

  // A scope in which backward passes are not reduced but accumulate in .grad;
  // the next pass outside reduces the sum:
  //
  //     {
  //       const auto guard = model.no_sync();
  //       loss_of(model(first_half), target).backward();
  //     }
  //     loss_of(model(second_half), target).backward();
  //
  // The forward pass belongs inside: it is what decides. In a local pass
  // buffers are not broadcast either.
  NoSync no_sync() const { return replica_->no_sync(); }

  // A scope in which ranks may run different numbers of passes: see Join. The
  // wrapper outlives it, and stays what it is meanwhile.
  Join join(const JoinOptions& options = {}) {
    return Join(*replica_, options);
  }

  // From now on `hook` says what travels between ranks in the place of
  // gradients: see CommHook, and compress_hook.h and power_sgd_hook.h for those
  // that are there. Every rank registers one at the same point of the program,
  // best before the first pass. A group of one asks it where it is to
  // reduce_alone. InvalidArgument for a second hook, during a pass, and without
  // average_gradients.
  void register_comm_hook(std::shared_ptr<CommHook> hook) {
    replica_->register_comm_hook(std::move(hook));
  }

  // The module itself.
  const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }

  // The module's, under the names that they have without the wrapper. A
  // parameter that has several, as tied weights do, is there once: see
  // distinct_parameters.h.
  std::vector<at::Tensor> parameters() const {
    return distinct_parameters(*module_);
  }
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const {
    return distinct_named_parameters(*module_);
  }
  std::vector<at::Tensor> buffers() const { return module_->buffers(); }

  void train() { module_->train(); }
  void eval() { module_->eval(); }
  void zero_grad() { module_->zero_grad(); }

  // The ranks that train together.
  const std::shared_ptr<ProcessGroup>& group() const {
    return replica_->group();
  }

 private:
  std::shared_ptr<Module> module_;
  std::unique_ptr<Replica> replica_;
};

// torch::save(model, path), as a rule on one rank: the module's own parameters
// and buffers, under the names that they have without the wrapper.
template <class Module>
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const DistributedDataParallel<Module>& model) {
  return archive << std::shared_ptr<torch::nn::Module>(model.module());
}

// torch::load(model, path), on every rank, of the same file: replicas are not
// compared again. Parameters stay in their memory; see load_in_place.h.
template <class Module>
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive,
    DistributedDataParallel<Module>& model) {
  load_in_place(archive, *model.module());
  return archive;
}

}  // namespace lockstep
