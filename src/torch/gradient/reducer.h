// Averages gradients over the ranks while the backward pass goes on, or adds
// them up.
//
// A hook on each parameter moves its gradient into a bucket (GradientBuckets);
// the tracker says which buckets are complete; those are reduced at once, each
// as one asynchronous operation, in the same order on every rank. When
// backward() returns, every .grad is the average over the ranks. After the
// first complete step the buckets are planned anew, in the order in which rank
// 0's gradients arrived. DistributedDataParallel and the other front doors
// stand on this class. See docs/design/torch.md.
//
// Gradients accumulate as in PyTorch: what .grad held before, equal on all
// ranks, stays part of the average. .grad is memory of the bucket, unless the
// options say otherwise: a caller that wants to keep a gradient beyond the next
// backward pass clones it.
//
// Sparse gradients stay sparse: see sparse_gradients.h.
//
// Which gradients make a pass: by default, every parameter's, once. With
// find_unused_parameters, those that arrive; with static_graph, those that
// arrived in the first pass, as often as they did then.
//
// Gradients on the CPU are reduced in a duplicate of the group, so that several
// reducers may be in one backward pass, each rank using other parameters of
// each, and the program may call collectives of the group within it.
//
// Threads: single-threaded, backward passes over its parameters included. It
//          may be moved between passes.
// Errors:  from backward(). InvalidArgument on every rank when some rank's
//          parameter got no gradient and should have: the group stays usable,
//          the gradients of this pass are of no use. InvalidArgument for
//          backward(create_graph = true). What ProcessGroup's operations throw.
//          When the pass itself throws on one rank, or gets a gradient that
//          comes too late to be reduced, that rank aborts the group, so that no
//          other rank waits for it. Mismatch on every rank if replicas differ:
//          see ReplicaWatch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/planning/pass_intent.h"
#include "src/torch/compare/replica_watch.h"
#include "src/torch/gradient/join_coordinator.h"

namespace lockstep {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

struct ReducerOptions {
  // As in BucketPlanOptions.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // As in DistributedDataParallelOptions.
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = true;
  bool average_gradients = true;
  bool reduce_alone = false;
  bool sparse_as_dense = false;
  // What becomes of the ranks' gradients: kAverage, or kSum. A sum is over all
  // that .grad holds, what an earlier pass has added up included: gradients are
  // to be dropped before a pass that is reduced.
  ReduceOp op = ReduceOp::kAverage;
};

// Of a front door that counts backward passes: which of them are reduced. Not
// called where no pass is.
class PassRule {
 public:
  virtual ~PassRule() = default;

  // A backward pass begins; says what it is, or throws to refuse it.
  virtual PassKind begins() = 0;
  // In that pass the gradient of this parameter has arrived, maybe again; may
  // throw to refuse it.
  virtual void arrived(std::size_t parameter) = 0;
  // As a pass is reduced in which not all have arrived here: whether this rank
  // may bring more before the step. Then all ranks hear of it.
  virtual bool expects_more() const = 0;
  // A pass was reduced; whether on some rank not all had arrived, or it expects
  // more. The same on all ranks.
  virtual void reduced(bool some_rank_is_incomplete) = 0;
  // A pass ended by an exception; .grad may hold part of it.
  virtual void abandoned() noexcept = 0;
};

class Reducer {
 public:
  // `parameters` are leaves that require a gradient, each named once, in the
  // same order on every rank. Every rank of the group makes it at the same
  // point. In a group of one, unless reduce_alone is set, and where nothing is
  // to be averaged, nothing is hooked, but to make gradients dense.
  // InvalidArgument for an empty list, or for a parameter that cannot be
  // reduced or is reduced by another Reducer.
  Reducer(std::vector<NamedParameter> parameters,
          std::shared_ptr<ProcessGroup> group,
          const ReducerOptions& options = {});

  // Takes the hooks out. Not to be called during a backward pass.
  ~Reducer();
  Reducer(Reducer&&) noexcept;
  Reducer& operator=(Reducer&&) noexcept;

  // Decides which passes stay local: for NoSync, which may outlive the Reducer.
  const std::shared_ptr<PassIntent>& intent() const;

  // To be called before a forward pass, if it is to decide whether the backward
  // pass after it is reduced: see PassIntent. Returns what it decides.
  PassKind forward_begins();
  // Of such a forward pass: once the gradient of `output` has come, an
  // exception that ends the backward pass aborts the group, as one after the
  // first gradient of a parameter does.
  void watch_output(const at::Tensor& output);

  // From now on `rule` says which passes are reduced.
  void decide_passes_by(std::shared_ptr<PassRule> rule);

  // Reduces what .grad holds now, in no backward pass: what local passes have
  // left, say. Takes the place of a pass that is reduced, so that ranks which
  // call this and ranks which are in such a pass meet. Not with static_graph,
  // which promises passes.
  void reduce_now();
  // The same of the gradients alone that local passes have brought since a pass
  // was reduced.
  void reduce_local_passes();
  // Whether `here` is true on some rank. A collective, in the order of what
  // this reducer reduces.
  bool is_true_somewhere(bool here);

  // From now on `hook` reduces the buckets; see CommHook. Every rank registers
  // one, between the same passes, and only one. It is not asked where nothing
  // is hooked. InvalidArgument for none, for a second, and during a pass.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // From now on `also` is called with the reason when a pass of which gradients
  // have arrived, a local one too, ends by an exception: to abort other groups,
  // in which ranks may wait meanwhile. It must not block or throw.
  void when_aborted(std::function<void(const std::string& reason)> also);

  // From now on `watch` compares the ranks' replicas beside passes that are
  // reduced, but for passes with a roll call and after a hook lets replicas
  // differ.
  void compare_replicas_by(std::shared_ptr<ReplicaWatch> watch);
  // Whether they are compared beside the next reduced pass.
  bool compares_next_pass() const;

  // From now on announces every pass that is reduced; null ends that.
  void set_join_coordinator(std::shared_ptr<JoinCoordinator> coordinator);

  // Does this rank's part of a pass that others have announced, without
  // gradients of its own. Every .grad is reset.
  void shadow_pass(const Participation& roll);

  // Buckets in the present plan; 0 in a group of one.
  std::size_t bucket_count() const;

 private:
  // On the heap, where hooks find it wherever the Reducer moves.
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
