// Training that goes on in the same processes when a rank dies or a new one
// comes, from a state that the ranks keep in memory.
//
//     std::int64_t step = 0;
//     lockstep::elastic::State state({.model = net,
//                                     .optimizer = &optimizer,
//                                     .counters = {{"step", &step}}});
//     lockstep::elastic::run(state, [&](lockstep::elastic::State& state) {
//       lockstep::DistributedDataParallel model(net);
//       while (step < 1000) {
//         …
//         if (++step % 10 == 0) state.commit();
//       }
//     });
//
// `lockstep run --in-place` starts such a program. When a rank dies, the others
// leave the default group, form a new one without it, restore what they
// committed last, and call the function again. A new rank joins after a commit,
// so no step is lost then. What belongs to the default group
// (DistributedDataParallel, DistributedSampler, a sub-group) is made in the
// function, since a new group has other ranks.
//
// The state must not need a rank that may die, nor belong to a group: use a
// plain optimizer, whose state every rank has in whole, and no
// ZeroRedundancyOptimizer or DistributedOptimizer. All of it is on the CPU.
//
// Threads: single-threaded.
// Errors:  as each function says.
// Source:  horovod.torch.elastic.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"

namespace lockstep::elastic {

// State::commit() throws it on every rank after the same step, so that run()
// forms a group with new ranks. A function that catches Error lets it pass.
class HostsUpdatedInterrupt : public Error {
 public:
  using Error::Error;
};

// The objects named here must outlive the state, which writes to them in place.
struct StateContents {
  // Its parameters and buffers; without a wrapper.
  std::shared_ptr<torch::nn::Module> model{};
  // Of the model's parameters.
  torch::optim::Optimizer* optimizer = nullptr;
  // The position of the run: epoch, step within it, …
  std::map<std::string, std::int64_t*> counters{};
  // Anything else that is the same on every rank: sums of losses, averages.
  std::map<std::string, at::Tensor> tensors{};
};

class State {
 public:
  // Saves the contents. InvalidArgument for an optimizer whose state no rank
  // has in whole, and for a tensor that is not on the CPU.
  explicit State(StateContents contents);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Saves the contents in this process's memory, to which a failure returns.
  // Then throws HostsUpdatedInterrupt on every rank if the launcher has
  // announced new ranks. Every rank calls it after the same step. A commit
  // copies parameters, buffers and the optimizer's state, and broadcasts four
  // bytes.
  void commit();

  // The first half of commit().
  void save();

  // Writes the last saved contents over the present ones, and resets .grad.
  void restore();

  // Gives every rank of the default group the contents of one: the lowest of
  // those with the most commits. Then saves them, and resets .grad. Error on
  // every rank where none has contents that the training has reached, since
  // every rank is a replacement; InvalidArgument where the names of the
  // contents differ. run() calls it.
  void sync();

  // run() calls them in each further group, before it synchronizes the state:
  // to adapt the learning rate, for example. A new rank does not call them; it
  // gets what they change in the state.
  void register_reset_callbacks(std::vector<std::function<void()>> callbacks);

 private:
  friend void run(State& state, const std::function<void(State&)>& train,
                  const InitOptions& options);
  struct Saved;

  void broadcast_contents(int root);
  void reset_gradients();
  void on_reset();

  const StateContents contents_;
  std::unique_ptr<Saved> saved_;
  std::vector<std::function<void()>> reset_callbacks_;
  // How often the job has committed; negative: on this rank never, since it
  // replaces another one and has not been synchronized.
  std::int64_t commits_ = 0;
  bool synchronized_ = false;  // by a sync() of this process
};

// Makes the default group if it does not exist, gives all ranks the same state,
// and calls `train`. Where `lockstep run --in-place` started the ranks,
// PeerFailure, NetworkError and Timeout from `train` mean: leave the group,
// restore the state, form the next group and call `train` again;
// HostsUpdatedInterrupt means the same without restoring. The launcher begins a
// further group when a process has ended or a new one has come, not for a rank
// that hangs or is slower than the group's deadline: after the Timeout of the
// others no group forms, and the job ends. Any other exception leaves run(),
// and so do all of them under another launcher and in a program that was
// started alone: run() then calls `train` once.
//
// When `train` has returned on all ranks, run() returns on all of them, or a
// rank has died before and all go on with the next group. From then on a death
// ends the job, because the work of the rank that died, such as saving the
// model, is not repeated. So the ranks of such a job call run() once: Error at
// a second call.
//
// Throws what init_process_group(options) throws when no further group forms:
// Timeout where no round begins within LOCKSTEP_RENDEZVOUS_TIMEOUT, Error where
// a rank has completed its training already.
void run(State& state, const std::function<void(State&)>& train,
         const InitOptions& options = {});

}  // namespace lockstep::elastic

namespace lockstep::horovod {
namespace elastic = lockstep::elastic;  // hvd.elastic
}  // namespace lockstep::horovod
