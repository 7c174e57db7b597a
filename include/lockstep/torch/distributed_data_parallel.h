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
// Every 1,000th reduced pass the ranks compare a hash of all parameters, so
// that replicas which drift apart do not stay unnoticed: see
// compare_replicas_every.
//
// Threads: single-threaded. The wrapper may be moved, but not during a pass.
// Errors:  when it is made: Mismatch on every rank when their modules differ,
//          InvalidArgument for a module without parameters to train, one with
//          a parameter that cannot be reduced or that is wrapped already.
//          From forward(): InvalidArgument when the module's parameters are not
//          those that were wrapped. From backward(): InvalidArgument on every
//          rank when some rank's parameter got no gradient and should have, and
//          for create_graph = true; Mismatch on every rank when replicas
//          differ; what collectives throw.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/ordered_dict.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hooks.h"

namespace lockstep {

class PassPolicy;
class Replica;

struct DistributedDataParallelOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Gradients are reduced in buckets that are closed at these sizes; the first
  // is small, so that reducing starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // Whether rank 0's buffers, such as BatchNorm's running statistics, are
  // copied to all ranks before each forward pass in training, and at the end of
  // join() those of the last rank with data. Passes in evaluation mode never
  // copy them: see broadcast_buffers() of the wrapper. All ranks begin with
  // rank 0's buffers in any case.
  bool broadcast_buffers = true;
  // Lets a pass leave parameters unused. A parameter that no rank used keeps
  // its .grad; one that some ranks used gets the average over all ranks, in
  // which the other ranks count as zero. Costs one operation per pass with
  // unused parameters.
  bool find_unused_parameters = false;
  // Promises that all passes have the graph of the first: each rank uses the
  // same parameters equally often. Allows parameters that stay unused, and
  // parts of the graph that run backward() inside backward() and share
  // parameters, as checkpoints do. The first pass does not overlap
  // communication.
  bool static_graph = false;
  // Whether .grad may be memory that the next pass overwrites. When false,
  // .grad stays where autograd put it, at the price of a copy per pass and
  // twice the memory.
  bool gradient_as_bucket_view = true;
  // Whether backward() averages gradients; when false, .grad is this rank's
  // own, for an optimizer that averages gradients itself.
  bool average_gradients = true;
  // Whether a group of one reduces its gradients and broadcasts its buffers
  // too, as PyTorch's does, though no number changes: for benchmarks and tests
  // with one device.
  bool reduce_alone = false;
  // Whether sparse gradients, of embeddings for example, are made dense as they
  // arrive in .grad, in a group of one too; without it they are reduced as
  // indices and values, and stay sparse. The first pass that brings one of a
  // parameter sends it as a dense one, through a communication hook too; hooks
  // do not see the later ones.
  bool sparse_as_dense = false;
  // How backward() combines the ranks' gradients: kAverage, or kSum, for losses
  // that are divided by the global batch. With a sum the program calls
  // zero_grad() before each reduced pass: earlier contents of .grad would count
  // once per rank. no_sync() works as usual.
  ReduceOp op = ReduceOp::kAverage;
  // Every so many reduced passes the ranks compare hashes of all parameters,
  // and of the buffers right after their broadcast; backward() throws Mismatch
  // on every rank if they differ, with the parameter, the element and the
  // ranks. 0 compares never. Costs a read of the parameters in such a pass.
  // Passes within no_sync() and join() do not count, nor do those after a hook
  // has let replicas differ, as PostLocalSgdHook does. The same on every rank.
  std::int64_t compare_replicas_every = 1000;
};

// A scope whose backward passes are local: gradients accumulate in .grad, and
// the next pass outside reduces the sum. See
// DistributedDataParallel::no_sync().
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<PassPolicy> policy);
  ~NoSync();
  // So that std::optional holds one that only some passes need.
  NoSync(NoSync&&) = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<PassPolicy> policy_;
};

struct JoinOptions {
  // Gradients are divided by the number of all ranks, so that a sample counts
  // as much as any other whenever it comes; else by that of the ranks that
  // still have data.
  bool divide_by_initial_world_size = true;
  // As soon as one rank is out of data, all throw, in their next pass.
  bool throw_on_early_termination = false;
};

// The scope of uneven inputs: ranks that run out of data do not leave the
// others waiting.
//
//     {
//       const auto scope = model.join();
//       for (auto& batch : my_batches) { … backward, step … }
//     }
//
// At the end of the scope a rank does its part of whatever the others still do
// together, with zeros for gradients, until no rank has data left. Then all
// take the parameters, and with broadcast_buffers the buffers, of the last rank
// that had. Passes within no_sync() concern this rank alone. Gradients are
// dropped before each reduced pass: those of an earlier one would be averaged
// again, with these zeros.
//
// Every rank of the group enters it. Forward and backward passes within throw
// Mismatch on every rank when ranks are about to do different things or are in
// different scopes, and InvalidArgument when some are out of data and that was
// not to happen. The end of the scope waits for the other ranks and throws the
// same, and what their operations throw; when the scope is left by an exception
// it does nothing, and the others get PeerFailure once this rank leaves the
// group. As PyTorch's Join for one DistributedDataParallel.
class [[nodiscard]] Join {
 public:
  Join(Replica& replica, const JoinOptions& options);
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

 private:
  Replica& replica_;
  int exceptions_;  // in flight when the scope was entered
};

// The part of DistributedDataParallel that does not depend on the module's
// type.
class ReplicatedModule {
 public:
  ReplicatedModule(const ReplicatedModule&) = delete;
  ReplicatedModule& operator=(const ReplicatedModule&) = delete;

  // Makes every rank's buffers rank 0's, whatever the options say: to be called
  // before an evaluation, since each rank has gathered running statistics of
  // its own since its last pass. PyTorch does this in the first forward pass
  // after training; here a pass in evaluation mode waits for no rank, so that
  // one rank may evaluate alone. A collective: every rank calls it. Within
  // join() it gives the buffers of the last rank that has data.
  void broadcast_buffers();

  // A scope in which backward passes are not reduced but accumulate in .grad;
  // the next pass outside reduces the sum:
  //
  //     {
  //       const auto guard = model.no_sync();
  //       loss_of(model(first_half), target).backward();
  //     }
  //     loss_of(model(second_half), target).backward();
  //
  // The forward pass belongs inside: it is what decides. If several precede a
  // backward pass, one outside suffices to make it a reduced one. In a local
  // pass buffers are not broadcast either.
  NoSync no_sync() const;

  // A scope in which ranks may run different numbers of passes: see Join. The
  // wrapper outlives it, and stays what it is meanwhile.
  Join join(const JoinOptions& options = {});

  // From now on `hook` says what travels between ranks in the place of
  // gradients: see CommHook, and comm_hooks.h for those that are there. Every
  // rank registers one at the same point of the program, best before the first
  // pass. A group of one asks it if it is to reduce_alone. InvalidArgument for
  // a second hook, during a pass, and without average_gradients.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // The module's, under the names that they have without the wrapper. A
  // parameter that has several, as tied weights do, is there once, under the
  // first, as in PyTorch. The first time in a process the log then gets a line
  // at level warn.
  std::vector<at::Tensor> parameters() const;
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;

  // The ranks that train together.
  const std::shared_ptr<ProcessGroup>& group() const;

  // torch::save(model, path), as a rule on one rank: the module's own
  // parameters and buffers, under the names that they have without the wrapper.
  friend torch::serialize::OutputArchive& operator<<(
      torch::serialize::OutputArchive& archive, const ReplicatedModule& model);
  // torch::load(model, path), on every rank, of the same file: replicas are not
  // compared again. Parameters and buffers stay in their memory.
  // InvalidArgument where a tensor of the file has another shape or type, and
  // what Module::load() throws; they leave the module unchanged.
  friend torch::serialize::InputArchive& operator>>(
      torch::serialize::InputArchive& archive, ReplicatedModule& model);

 protected:
  ReplicatedModule(std::shared_ptr<torch::nn::Module> module,
                   const DistributedDataParallelOptions& options);
  ~ReplicatedModule();
  ReplicatedModule(ReplicatedModule&&) noexcept;
  ReplicatedModule& operator=(ReplicatedModule&&) noexcept;

  // Call it before every forward pass, and after it for its result: a tensor,
  // or a list, a pair or a tuple of such. Other results are left alone.
  void before_forward();
  void after_forward(const at::Tensor& output);
  template <class Result>
  void after_forward(const Result& result) {
    if constexpr (requires { std::tuple_size<Result>::value; })
      std::apply([this](const auto&... each) { (after_forward(each), ...); },
                 result);
    else if constexpr (std::same_as<Result, std::vector<at::Tensor>>)
      for (const at::Tensor& each : result) after_forward(each);
  }

 private:
  std::unique_ptr<Replica> replica_;
};

// `Module` is deduced: from a module, which moves into the wrapper, from a
// shared pointer to one, or from a holder made by TORCH_MODULE.
template <std::derived_from<torch::nn::Module> Module>
class DistributedDataParallel : public ReplicatedModule {
 public:
  explicit DistributedDataParallel(
      std::shared_ptr<Module> module,
      const DistributedDataParallelOptions& options = {})
      : ReplicatedModule(module, options), module_(std::move(module)) {}

  explicit DistributedDataParallel(
      Module&& module, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(std::make_shared<Module>(std::move(module)),
                                options) {}

  // A module that the caller keeps does not compile: the wrapper would train a
  // copy of it.
  explicit DistributedDataParallel(
      const Module& /*module*/,
      const DistributedDataParallelOptions& /*options*/ = {})
      : DistributedDataParallel(std::shared_ptr<Module>()) {
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
    using Result =
        decltype(module_->forward(std::forward<Arguments>(arguments)...));
    before_forward();
    if constexpr (std::is_void_v<Result>) {
      module_->forward(std::forward<Arguments>(arguments)...);
    } else {
      decltype(auto) result =
          module_->forward(std::forward<Arguments>(arguments)...);
      after_forward(result);
      return result;
    }
  }
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // The module itself.
  const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }

  // Those of the module.
  std::vector<at::Tensor> buffers() const { return module_->buffers(); }

  void train() { module_->train(); }
  void eval() { module_->eval(); }
  void zero_grad() { module_->zero_grad(); }

 private:
  std::shared_ptr<Module> module_;
};

}  // namespace lockstep
