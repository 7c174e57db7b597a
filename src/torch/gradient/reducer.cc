#include "src/torch/gradient/reducer.h"

#include <ATen/ops/_foreach_div.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/group_core.h"
#include "src/planning/bucket_plan.h"
#include "src/planning/gradient_tracker.h"
#include "src/planning/pass_expectation.h"
#include "src/torch/device/device_graph.h"
#include "src/torch/gradient/autograd_hooks.h"
#include "src/torch/gradient/bucket_reduction.h"
#include "src/torch/gradient/join_announcements.h"
#include "src/torch/gradient/missing_gradients.h"
#include "src/torch/gradient/pass_errors.h"
#include "src/torch/gradient/saved_gradients.h"
#include "src/torch/gradient/sparse_gradients.h"
#include "src/torch/tensor/heap_allocator.h"
#include "src/torch/tensor/tensor_fault.h"
#include "src/torch/tensor/tensor_lists.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

ParameterSize size_for_plan(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  try {
    if (!tensor.requires_grad() || !tensor.is_leaf())
      throw InvalidArgument("it is no leaf that requires a gradient");
    if (const auto fault = fault_of_reduced(tensor, gradient_type(tensor)))
      throw InvalidArgument("it " + fault->why + "\n  next:    " + fault->next);
    return {.elements = static_cast<std::size_t>(tensor.numel()),
            .type = data_type_of(gradient_type(tensor)),
            .device = buffer_device(tensor)};
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("parameter " + parameter.name +
                          " cannot be reduced: " + error.what());
  }
}

void refuse_create_graph() {
  if (c10::GradMode::is_enabled()) throw InvalidArgument(create_graph_text());
}

bool same_slots(const BucketPlan& a, const BucketPlan& b) {
  return std::ranges::equal(
      a.places, b.places, [](const auto& place, const auto& other) {
        return place.bucket == other.bucket && place.position == other.position;
      });
}

BucketPlanOptions plan_options(const ReducerOptions& options) {
  return {.first_bucket_bytes = options.first_bucket_bytes,
          .bucket_bytes = options.bucket_bytes};
}

void make_dense(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient.layout() != at::kStrided)
    gradient = gradient.to_dense();
}

void divide_gradients(std::span<const at::Tensor> parameters, double divisor) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters)
    gradients.push_back(parameter.grad());
  for (const auto& list : by_device_and_type(gradients))
    at::_foreach_div_(list, divisor);
}

bool reduces(const ProcessGroup& group, const ReducerOptions& options) {
  return options.average_gradients &&
         (group.size() > 1 || options.reduce_alone);
}

// The order in which gradients are reduced: a duplicate of `group`, so that it
// depends neither on other reducers of a pass nor on what the program does
// within it. GPUs have one order a group.
std::shared_ptr<ProcessGroup> own_order(
    const std::shared_ptr<ProcessGroup>& group,
    const std::vector<NamedParameter>& parameters,
    const ReducerOptions& options) {
  const bool on_cpu = std::ranges::all_of(
      parameters, [](const auto& one) { return one.tensor.is_cpu(); });
  if (!reduces(*group, options) || !on_cpu) return group;
  auto duplicate = group->core().duplicate();
  return duplicate ? duplicate : group;
}

// Reducers are made in one order on all ranks that have them in common.
std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

PassExpectation::Rule rule_of(const ReducerOptions& options) {
  if (options.static_graph) return PassExpectation::Rule::kAsAtFirst;
  if (options.find_unused_parameters)
    return PassExpectation::Rule::kAnyGradient;
  return PassExpectation::Rule::kEveryGradient;
}

}  // namespace

class Reducer::State : public std::enable_shared_from_this<State> {
 public:
  State(std::vector<NamedParameter> parameters,
        std::shared_ptr<ProcessGroup> group, const ReducerOptions& options);

  std::size_t bucket_count() const { return plan_.buckets.size(); }
  const std::shared_ptr<PassIntent>& intent() const { return intent_; }
  void set_join_coordinator(std::shared_ptr<JoinCoordinator> coordinator) {
    join_coordinator_ = std::move(coordinator);
  }
  void set_hook(std::shared_ptr<CommHook> hook);
  void when_aborted(AlsoAbort also) {
    reduction_.when_aborted(std::move(also));
  }
  void shadow_pass(const Participation& roll);
  enum class Held { kAll, kOfLocalPasses };
  void reduce_now(Held held);
  bool is_true_somewhere(bool here);
  void decide_passes_by(std::shared_ptr<PassRule> rule);
  PassKind forward_begins();
  void backward_begins();
  bool compares_next_pass() const {
    return compares_replicas() && watch_->is_due();
  }
  void compare_replicas_by(std::shared_ptr<ReplicaWatch> watch) {
    watch_ = std::move(watch);
  }

 private:
  using Indices = PassExpectation::Indices;
  // Whether this rank has gradients of its own in a pass.
  enum class Part { kTrains, kShadows };
  using Moment = ReplicaWatch::Moment;

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
  void start_buckets(std::size_t first, std::size_t count);
  void start_rest_of_pass();
  void finish_pass();
  Indices start_rest(Part part);
  void close_pass(Part part, const Indices& missing);
  Indices start_incomplete_buckets(Part part);
  void take_partial_gradients();
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
  const std::uint64_t number_ = next_number();
  ReduceOp op_;
  bool sparse_as_dense_;
  bool reduces_;  // else gradients stay what this rank's passes bring
  BucketPlanOptions plan_options_;

  BucketPlan plan_;
  GradientTracker tracker_;
  BucketReduction reduction_;
  bool follows_arrival_ = false;  // whether the plan is in order of arrival
  std::optional<SparseGradients> sparse_;  // from construction on

  // Of the next passes.
  std::shared_ptr<PassIntent> intent_ = std::make_shared<PassIntent>();
  std::shared_ptr<PassRule> rule_;  // null where intent_ decides
  PassExpectation expectation_;
  std::shared_ptr<JoinCoordinator> join_coordinator_;  // within join()
  std::shared_ptr<ReplicaWatch> watch_;                // may be null

  // Of the present pass.
  std::optional<PassKind> pass_;  // empty between passes
  bool awaits_first_ = false;     // of the gradients of a reduced pass
  Participation roll_;
  Indices missing_;  // once all is started: what this rank has told of
  SavedGradients saved_;

  // By parameter, the gradients that the last pass has reduced in part, with
  // their versions then.
  std::unordered_map<std::size_t, SeenTensor> partly_reduced_;

  std::optional<GradientHooks> hooks_;
};

Reducer::State::State(std::vector<NamedParameter> parameters,
                      std::shared_ptr<ProcessGroup> group,
                      const ReducerOptions& options)
    : group_(std::move(group)),
      order_(own_order(group_, parameters, options)),
      op_(options.op),
      sparse_as_dense_(options.sparse_as_dense),
      reduces_(reduces(*group_, options)),
      plan_options_(plan_options(options)),
      tracker_(plan_),
      reduction_(order_),
      expectation_(rule_of(options), parameters.size()),
      saved_(parameters.size(), options.gradient_as_bucket_view
                                    ? SavedGradients::Memory::kBucket
                                    : SavedGradients::Memory::kOwn) {
  if (op_ != ReduceOp::kAverage && op_ != ReduceOp::kSum)
    throw InvalidArgument(
        "gradients are averaged or added up, nothing else\n"
        "  next:    set op to ReduceOp::kAverage or ReduceOp::kSum");
  if (parameters.empty())
    throw InvalidArgument(
        "there is nothing to reduce: no parameter requires a gradient\n"
        "  next:    use the module without a wrapper, or call "
        "requires_grad_(true) on what it should learn");
  for (NamedParameter& parameter : parameters) {
    sizes_.push_back(size_for_plan(parameter));
    tensors_.push_back(std::move(parameter.tensor));
    names_.push_back(std::move(parameter.name));
  }
  if (std::ranges::any_of(tensors_, &at::Tensor::is_cpu))
    allocate_tensors_from(group_->core().heap());
  sparse_.emplace(tensors_);
  if (reduces_) adopt_plan(plan_buckets(sizes_, plan_options_));
  if (reduces_ || sparse_as_dense_)
    hooks_.emplace(tensors_, names_, [this](std::size_t parameter) {
      gradient_arrived(parameter);
    });
}

void Reducer::State::adopt_plan(BucketPlan plan) {
  plan_ = std::move(plan);
  tracker_ = GradientTracker(plan_);
  reduction_.follow(plan_, sparse_->in_buckets());
}

void Reducer::State::set_hook(std::shared_ptr<CommHook> hook) {
  if (pass_)
    throw InvalidArgument(
        "register_comm_hook: a backward pass is under way"
        "\n  next:    register the hook before the first one");
  reduction_.set_hook(std::move(hook));
}

void Reducer::State::gradient_arrived(std::size_t parameter) {
  if (sparse_as_dense_) make_dense(tensors_[parameter]);
  if (!reduces_) return;
  if (!pass_)
    begin_pass(parameter);
  else if (adds_to_partly_reduced(parameter))
    fail(partly_reduced_text(names_[parameter]));
  if (rule_) rule_->arrived(parameter);
  const bool local = *pass_ == PassKind::kLocal;
  const c10::AutoGradMode no_grad(false);
  GradientTracker::Arrival arrival;
  if (local)
    expectation_.arrived_in_local_pass(parameter);
  else
    arrival = tracker_.arrived(parameter);
  if (!expectation_.allows(parameter, arrival.status))
    fail(unexpected_gradient_text(names_[parameter], expectation_.rule()));
  if (local || arrival.status != GradientTracker::Status::kFinal) return;
  take(parameter);
  start_buckets(arrival.first_bucket, arrival.bucket_count);
}

PassKind Reducer::State::forward_begins() {
  if (reduces_) saved_.forward_begins(sparse_->in_buckets());
  intent_->forward_begins();
  return intent_->here();
}

// Not for grad() and backward(inputs), after which other gradients may come,
// nor for a graph of gradients, which is refused.
void Reducer::State::backward_begins() {
  if (!reduces_ || pass_ || awaits_first_ || !intent_->expects_reduced_pass() ||
      is_pass_of_some_inputs() || c10::GradMode::is_enabled() ||
      std::ranges::none_of(tensors_, &at::Tensor::requires_grad))
    return;
  awaits_first_ = true;
  const auto self = shared_from_this();
  at_end_of_backward({.number = number_,
                      .start_rest = [] {},
                      .finish = [self] { self->awaits_first_ = false; },
                      .abandon =
                          [self] {
                            if (std::exchange(self->awaits_first_, false))
                              self->abort_pass();
                          }});
}

// Whether the pass has added to what the last one left of the gradient:
// zero_grad() would have changed the version once more.
bool Reducer::State::adds_to_partly_reduced(std::size_t parameter) {
  const auto found = partly_reduced_.find(parameter);
  if (found == partly_reduced_.end()) return false;
  SeenTensor& before = found->second;
  const at::Tensor& gradient = tensors_[parameter].grad();
  const bool adds = gradient.defined() && before.is_same(gradient) &&
                    version_of(gradient) == before.version() + 1;
  if (adds) before = SeenTensor(gradient);  // to notice another attempt too
  return adds;
}

void Reducer::State::note_partly_reduced() {
  partly_reduced_.clear();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!reduction_.reduces_in_part(tensors_[i])) continue;
    const at::Tensor& gradient = tensors_[i].grad();
    if (gradient.defined()) partly_reduced_.emplace(i, SeenTensor(gradient));
  }
}

void Reducer::State::begin_pass(std::size_t first) {
  // What is thrown before pass_ is set ends a pass of which nothing has begun;
  // afterwards abandon_pass() aborts the group.
  awaits_first_ = false;
  // A rule counts what it is asked of.
  if (intent_->has_rule()) refuse_create_graph();
  const PassKind kind = intent_->backward_begins();
  if (adds_to_partly_reduced(first))
    throw InvalidArgument(partly_reduced_text(names_[first]));
  const Participation roll = participation_in(kind);
  at_end_of_backward(
      {.number = number_,
       .start_rest = [self =
                          shared_from_this()] { self->start_rest_of_pass(); },
       .finish = [self = shared_from_this()] { self->finish_pass(); },
       .abandon = [self = shared_from_this()] { self->abandon_pass(); }});
  pass_ = kind;
  if (kind == PassKind::kReduced) open_pass(roll, Moment::kBackward);
}

Participation Reducer::State::participation_in(PassKind kind) {
  if (kind == PassKind::kReduced) {
    refuse_create_graph();
    if (!rule_) refuse_joins(group_, "gradients cannot be reduced");
    if (join_coordinator_)
      return join_coordinator_->announce(Activity::kBackward);
  }
  return full_participation(*group_, Activity::kBackward);
}

void Reducer::State::open_pass(const Participation& roll, Moment moment) {
  const c10::AutoGradMode no_grad(false);
  roll_ = roll;
  sparse_->begin_pass();
  reduction_.begin_pass(op_ == ReduceOp::kSum ? 1 : roll.divisor);
  reduction_.buckets().move_strangers_out(sparse_->in_buckets());
  begin_comparison(moment);
  if (expectation_.rule() == PassExpectation::Rule::kAsAtFirst)
    tracker_.expect(expectation_.counts());
  const auto ready = tracker_.begin_step();
  for (const std::size_t parameter : expectation_.never_here())
    stand_in(parameter);
  start_buckets(ready.first_bucket, ready.bucket_count);
}

bool Reducer::State::compares_replicas() const {
  return watch_ && !join_coordinator_ && !reduction_.replicas_may_differ() &&
         !is_capturing();
}

void Reducer::State::begin_comparison(Moment moment) {
  if (!compares_replicas()) return;
  if (auto work = watch_->pass_begins(*order_, moment))
    reduction_.add(std::move(*work));
}

void Reducer::State::prepare(std::size_t parameter) {
  if (sparse_as_dense_)
    make_dense(tensors_[parameter]);
  else if (sparse_->prepare(parameter, names_[parameter]))
    reduction_.buckets().declare_incomplete();  // so that ranks tell of it
}

void Reducer::State::take(std::size_t parameter) {
  prepare(parameter);
  const at::Tensor& in_bucket = sparse_->in_buckets()[parameter];
  saved_.keep(parameter, in_bucket);
  reduction_.buckets().take(parameter, in_bucket, names_[parameter]);
}

void Reducer::State::stand_in(std::size_t parameter) {
  prepare(parameter);
  saved_.stand_in(parameter, sparse_->in_buckets()[parameter]);
  take(parameter);
}

void Reducer::State::start_buckets(std::size_t first, std::size_t count) {
  LOCKSTEP_CHECK(count == 0 || first == reduction_.started(),
                 "buckets are started in the order of the plan");
  for (std::size_t i = 0; i < count; ++i) reduction_.start_next();
}

void Reducer::State::start_rest_of_pass() {
  if (pass_ == PassKind::kReduced) missing_ = start_rest(Part::kTrains);
}

void Reducer::State::finish_pass() {
  const PassKind kind = *std::exchange(pass_, std::nullopt);
  if (kind == PassKind::kLocal) return expectation_.end_local_pass();
  close_pass(Part::kTrains, missing_);
}

void Reducer::State::shadow_pass(const Participation& roll) {
  for (const at::Tensor& tensor : tensors_) tensor.mutable_grad().reset();
  open_pass(roll, Moment::kAbsent);
  close_pass(Part::kShadows, start_rest(Part::kShadows));
}

void Reducer::State::decide_passes_by(std::shared_ptr<PassRule> rule) {
  intent_->decide_by([rule] { return rule->begins(); });
  rule_ = std::move(rule);
}

bool Reducer::State::is_true_somewhere(bool here) {
  std::vector<std::int64_t> flag{here ? 1 : 0};
  order_
      ->all_reduce(view(flag), ReduceOp::kMax,
                   {.label = "whether a rank has more gradients"})
      .wait();
  return flag[0] != 0;
}

void Reducer::State::reduce_now(Held held) {
  LOCKSTEP_CHECK(expectation_.rule() != PassExpectation::Rule::kAsAtFirst,
                 "a static graph has no gradients outside its passes");
  if (!reduces_) return;
  const c10::AutoGradMode no_grad(false);
  try {
    open_pass(full_participation(*group_, Activity::kBackward), Moment::kStep);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].grad().defined()) continue;
      if (held == Held::kOfLocalPasses && !expectation_.has_local_gradient(i))
        continue;
      const auto arrival = tracker_.arrived(i);
      take(i);
      start_buckets(arrival.first_bucket, arrival.bucket_count);
    }
  } catch (...) {
    abort_pass();
    throw;
  }
  close_pass(Part::kTrains, start_rest(Part::kTrains));
}

// Returns what is missing here, where others have been told of it.
Reducer::State::Indices Reducer::State::start_rest(Part part) {
  if (tracker_.complete()) return {};
  const c10::AutoGradMode no_grad(false);
  try {
    return start_incomplete_buckets(part);
  } catch (...) {
    pass_.reset();
    abort_pass();  // the others wait for what cannot be started
    throw;
  }
}

void Reducer::State::close_pass(Part part, const Indices& missing) {
  const c10::AutoGradMode no_grad(false);
  reduction_.finish();
  reduction_.buckets().let_go();
  const bool incomplete = reduction_.buckets().some_rank_is_incomplete();
  if (incomplete) learn_from_all(part, missing);
  try {
    reduce_sparse_gradients(part);
  } catch (...) {
    abort_pass();  // the others may wait for this rank in the next gather
    throw;
  }
  if (rule_) rule_->reduced(incomplete);
  settle_gradients(part);
  note_partly_reduced();
  expectation_.end_pass(part == Part::kTrains ? &tracker_.counts() : nullptr);
  if (!follows_arrival_ || sparse_->has_learnt()) plan_in_order_of_arrival();
  if (part == Part::kTrains) group_->core().count_reduced_pass();
  if (watch_) watch_->pass_ends(*order_);
}

// Those whose number of arrivals is not known yet.
void Reducer::State::take_partial_gradients() {
  const auto& expected = expectation_.counts();
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i] == GradientTracker::kUnknown && tracker_.counts()[i] > 0)
      take(i);
}

// Returns those that this rank has told the others of.
Reducer::State::Indices Reducer::State::start_incomplete_buckets(Part part) {
  take_partial_gradients();
  Indices missing = tracker_.missing();
  for (const std::size_t parameter : missing) stand_in(parameter);
  if (part == Part::kTrains)
    missing = expectation_.worth_telling(std::move(missing));
  else
    missing.clear();
  if (!missing.empty() || (rule_ && rule_->expects_more()))
    reduction_.buckets().declare_incomplete();
  start_buckets(tracker_.launched(),
                plan_.buckets.size() - tracker_.launched());
  return missing;
}

// What no rank has used, and what is sparse.
void Reducer::State::learn_from_all(Part part, const Indices& missing) {
  using Mark = MissingGradients::Mark;
  std::vector<Mark> marks(tensors_.size(), Mark::kAbsent);
  if (part == Part::kTrains)
    for (std::size_t i = 0; i < marks.size(); ++i)
      marks[i] = sparse_->mark_of(i);
  for (const std::size_t parameter : missing) marks[parameter] = Mark::kMissing;
  const MissingGradients all(*order_, marks);
  if (all.some_missing() && !expectation_.allows_missing()) {
    saved_.settle([](std::size_t) { return true; });
    expectation_.drop_gradients();
    throw InvalidArgument(missing_gradients_text(*group_, expectation_.rule(),
                                                 all.lines(names_)));
  }
  sparse_->learn(all);
  if (!all.some_missing()) return;
  std::vector<char> unused(tensors_.size());
  for (std::size_t i = 0; i < unused.size(); ++i)
    unused[i] = all.everywhere(i) ? 1 : 0;
  expectation_.set_unused(std::move(unused));
}

void Reducer::State::reduce_sparse_gradients(Part part) {
  using Result = SparseGradients::Result;
  sparse_->reduce(
      *order_, op_ == ReduceOp::kSum ? 1 : roll_.divisor,
      [this](std::size_t parameter) { return expectation_.unused(parameter); },
      part == Part::kTrains ? Result::kKept : Result::kDropped);
}

void Reducer::State::settle_gradients(Part part) {
  if (const double divisor = reduction_.left_to_divide_by(); divisor != 1)
    divide_gradients(sparse_->in_buckets(), divisor);
  saved_.settle([&](std::size_t parameter) {
    return part == Part::kShadows || expectation_.unused(parameter);
  });
  sparse_->end_pass();
}

void Reducer::State::abandon_pass() noexcept {
  expectation_.drop_local_pass();
  if (rule_) rule_->abandoned();
  if (std::exchange(pass_, std::nullopt) == PassKind::kReduced)
    return abort_pass();
  // In a local pass no rank waits in this group, but perhaps in others.
  reduction_.abort_others("rank " + std::to_string(group_->rank()) +
                          " left its backward pass by an exception; read its "
                          "log");
}

void Reducer::State::abort_pass() noexcept {
  reduction_.abort("rank " + std::to_string(group_->rank()) +
                   " left its backward pass by an exception, with gradients of "
                   "this step still to be reduced; read its log");
}

// The others hear the reason, and not only that this rank has left its pass.
void Reducer::State::fail(const std::string& why) {
  reduction_.abort("on rank " + std::to_string(group_->rank()) + " " + why);
  throw InvalidArgument(why);
}

// Gradients may arrive in another order on each rank; one rank's is taken, so
// that all have one plan.
void Reducer::State::plan_in_order_of_arrival() {
  const auto arrived = tracker_.arrival_order();
  std::vector<std::int64_t> order(arrived.begin(), arrived.end());
  order_->broadcast(view(order), roll_.root, {.label = "order of gradients"})
      .wait();
  follows_arrival_ = true;
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    if (sparse_->is_sparse(i)) sizes_[i].elements = 0;
  BucketPlan plan =
      plan_buckets(sizes_, std::vector<std::size_t>(order.begin(), order.end()),
                   plan_options_);
  if (sparse_->has_learnt() || !same_slots(plan, plan_))
    adopt_plan(std::move(plan));
}

Reducer::Reducer(std::vector<NamedParameter> parameters,
                 std::shared_ptr<ProcessGroup> group,
                 const ReducerOptions& options)
    : state_(std::make_shared<State>(std::move(parameters), std::move(group),
                                     options)) {}

Reducer::~Reducer() = default;
Reducer::Reducer(Reducer&&) noexcept = default;
Reducer& Reducer::operator=(Reducer&&) noexcept = default;

const std::shared_ptr<PassIntent>& Reducer::intent() const {
  return state_->intent();
}

void Reducer::watch_output(const at::Tensor& output) {
  call_when_gradient_comes(output, [state = std::weak_ptr<State>(state_)] {
    if (const auto alive = state.lock()) alive->backward_begins();
  });
}

bool Reducer::compares_next_pass() const {
  return state_->compares_next_pass();
}

void Reducer::compare_replicas_by(std::shared_ptr<ReplicaWatch> watch) {
  state_->compare_replicas_by(std::move(watch));
}

PassKind Reducer::forward_begins() { return state_->forward_begins(); }

void Reducer::set_join_coordinator(
    std::shared_ptr<JoinCoordinator> coordinator) {
  state_->set_join_coordinator(std::move(coordinator));
}

void Reducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  state_->set_hook(std::move(hook));
}

void Reducer::when_aborted(AlsoAbort also) {
  state_->when_aborted(std::move(also));
}

void Reducer::shadow_pass(const Participation& roll) {
  state_->shadow_pass(roll);
}

void Reducer::decide_passes_by(std::shared_ptr<PassRule> rule) {
  state_->decide_passes_by(std::move(rule));
}

void Reducer::reduce_now() { state_->reduce_now(State::Held::kAll); }

void Reducer::reduce_local_passes() {
  state_->reduce_now(State::Held::kOfLocalPasses);
}

bool Reducer::is_true_somewhere(bool here) {
  return state_->is_true_somewhere(here);
}

std::size_t Reducer::bucket_count() const { return state_->bucket_count(); }

}  // namespace lockstep
