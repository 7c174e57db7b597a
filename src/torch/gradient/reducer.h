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
// Threads: single-threaded, backward passes over its parameters included.
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
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/planning/bucket_plan.h"
#include "src/planning/pass_policy.h"
#include "src/torch/compare/replica_watch.h"
#include "src/torch/gradient/autograd_hooks.h"
#include "src/torch/gradient/bucket_reduction.h"
#include "src/torch/gradient/join_coordinator.h"
#include "src/torch/gradient/saved_gradients.h"
#include "src/torch/gradient/sparse_gradients.h"
#include "src/torch/tensor/tensor_memory.h"

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

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // A backward pass that is under way shares the Reducer and keeps it alive
  // until its end.
  //
  // `parameters` are leaves that require a gradient, each named once, in the
  // same order on every rank. Every rank of the group makes it at the same
  // point. In a group of one, unless reduce_alone is set, and where nothing is
  // to be averaged, nothing is hooked, but to make gradients dense.
  // InvalidArgument for an empty list, or for a parameter that cannot be
  // reduced or is reduced by another Reducer.
  static std::shared_ptr<Reducer> make(std::vector<NamedParameter> parameters,
                                       std::shared_ptr<ProcessGroup> group,
                                       const ReducerOptions& options = {});

  // Takes the hooks out. Not to be called during a backward pass.
  ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Decides which passes stay local: for NoSync, which may outlive the Reducer.
  const std::shared_ptr<PassPolicy>& policy() const { return policy_; }

  // To be called before a forward pass, if it is to decide whether the backward
  // pass after it is reduced: see PassPolicy. Returns what it decides.
  PassKind forward_begins();
  // Of such a forward pass: once the gradient of `output` has come, an
  // exception that ends the backward pass aborts the group, as one after the
  // first gradient of a parameter does.
  void watch_output(const at::Tensor& output);

  // From now on `counter` says which passes are reduced.
  void count_passes_by(std::shared_ptr<PassCounter> counter) {
    policy_->count_by(std::move(counter));
  }

  // Reduces what .grad holds now, in no backward pass: what local passes have
  // left, say. Takes the place of a pass that is reduced, so that ranks which
  // call this and ranks which are in such a pass meet. Not with static_graph,
  // which promises passes.
  void reduce_now() { reduce_held(Held::kAll); }
  // The same of the gradients alone that local passes have brought since a pass
  // was reduced.
  void reduce_local_passes() { reduce_held(Held::kOfLocalPasses); }
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
  void when_aborted(AlsoAbort also) {
    reduction_.when_aborted(std::move(also));
  }

  // From now on `watch` compares the ranks' replicas beside passes that are
  // reduced, but for passes with a roll call and after a hook lets replicas
  // differ.
  void compare_replicas_by(std::shared_ptr<ReplicaWatch> watch) {
    watch_ = std::move(watch);
  }
  // Whether they are compared beside the next reduced pass.
  bool compares_next_pass() const {
    return compares_replicas() && watch_->is_due();
  }

  // From now on announces every pass that is reduced; null ends that.
  void set_join_coordinator(std::shared_ptr<JoinCoordinator> coordinator) {
    join_coordinator_ = std::move(coordinator);
  }

  // Does this rank's part of a pass that others have announced, without
  // gradients of its own. Every .grad is reset.
  void shadow_pass(const Participation& roll);

  // Buckets in the present plan; 0 in a group of one.
  std::size_t bucket_count() const { return plan_.buckets.size(); }

 private:
  using Indices = PassPolicy::Indices;
  using Part = PassPolicy::Part;
  using Moment = ReplicaWatch::Moment;
  enum class Held { kAll, kOfLocalPasses };

  Reducer(std::vector<NamedParameter> parameters,
          std::shared_ptr<ProcessGroup> group, const ReducerOptions& options);

  void backward_begins();
  void reduce_held(Held held);

  void gradient_arrived(std::size_t parameter);
  void begin_pass(std::size_t first);
  Participation participation_in(PassKind kind);
  bool adds_to_partly_reduced(std::size_t parameter);
  void open_pass(const Participation& roll, Moment moment);
  bool compares_replicas() const;
  void begin_comparison(Moment moment);
  void prepare(std::size_t parameter);
  void take(std::size_t parameter);
  void stand_in(std::size_t parameter);
  void start_buckets(const PassPolicy::Arrival& arrival);
  void start_rest_of_pass();
  void finish_pass();
  Indices start_rest(Part part);
  void close_pass(Part part, const Indices& missing);
  Indices start_incomplete_buckets(Part part);
  void learn_from_all(Part part, const Indices& missing);
  void reduce_sparse_gradients(Part part);
  void settle_gradients(Part part);
  void note_partly_reduced();
  void plan_in_order_of_arrival();
  void adopt_plan(BucketPlan plan);
  void abandon_pass() noexcept;
  void abort_pass() noexcept;
  [[noreturn]] void fail(const std::string& why);

  std::vector<at::Tensor> tensors_;
  std::vector<std::string> names_;
  std::vector<ParameterSize> sizes_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<ProcessGroup> order_;  // in which gradients are reduced
  const std::uint64_t number_;
  ReduceOp op_;
  bool sparse_as_dense_;
  bool reduces_;  // else gradients stay what this rank's passes bring
  BucketPlanOptions plan_options_;

  BucketPlan plan_;
  BucketReduction reduction_;
  bool follows_arrival_ = false;  // whether the plan is in order of arrival
  std::optional<SparseGradients> sparse_;  // from construction on

  // Of the next passes.
  std::shared_ptr<PassPolicy> policy_;
  std::shared_ptr<JoinCoordinator> join_coordinator_;  // within join()
  std::shared_ptr<ReplicaWatch> watch_;                // may be null

  // Of the present pass.
  bool awaits_first_ = false;  // of the gradients of a reduced pass
  Participation roll_;
  Indices missing_;  // once all is started: what this rank has told of
  SavedGradients saved_;

  // By parameter, the gradients that the last pass has reduced in part, with
  // their versions then.
  std::unordered_map<std::size_t, SeenTensor> partly_reduced_;

  std::optional<GradientHooks> hooks_;
};

}  // namespace lockstep
