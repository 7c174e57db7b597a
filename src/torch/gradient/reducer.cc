#include "src/torch/gradient/reducer.h"

#include <ATen/ops/_foreach_div.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/group_core.h"
#include "src/torch/device/device_graph.h"
#include "src/torch/gradient/join_announcements.h"
#include "src/torch/gradient/missing_gradients.h"
#include "src/torch/gradient/pass_errors.h"
#include "src/torch/tensor/heap_allocator.h"
#include "src/torch/tensor/tensor_fault.h"
#include "src/torch/tensor/tensor_lists.h"

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

PassPolicy::Rule rule_of(const ReducerOptions& options) {
  using Rule = PassPolicy::Rule;
  if (options.static_graph) return Rule::kAsAtFirst;
  return options.find_unused_parameters ? Rule::kAnyGradient
                                        : Rule::kEveryGradient;
}

}  // namespace

std::shared_ptr<Reducer> Reducer::make(std::vector<NamedParameter> parameters,
                                       std::shared_ptr<ProcessGroup> group,
                                       const ReducerOptions& options) {
  return std::shared_ptr<Reducer>(
      new Reducer(std::move(parameters), std::move(group), options));
}

Reducer::Reducer(std::vector<NamedParameter> parameters,
                 std::shared_ptr<ProcessGroup> group,
                 const ReducerOptions& options)
    : group_(std::move(group)),
      order_(own_order(group_, parameters, options)),
      number_(next_number()),
      op_(options.op),
      sparse_as_dense_(options.sparse_as_dense),
      reduces_(reduces(*group_, options)),
      plan_options_(plan_options(options)),
      reduction_(order_),
      policy_(
          std::make_shared<PassPolicy>(rule_of(options), parameters.size())),
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

void Reducer::adopt_plan(BucketPlan plan) {
  plan_ = std::move(plan);
  policy_->follow(plan_);
  reduction_.follow(plan_, sparse_->in_buckets());
}

void Reducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  if (policy_->under_way())
    throw InvalidArgument(
        "register_comm_hook: a backward pass is under way"
        "\n  next:    register the hook before the first one");
  reduction_.set_hook(std::move(hook));
}

void Reducer::gradient_arrived(std::size_t parameter) {
  if (sparse_as_dense_) make_dense(tensors_[parameter]);
  if (!reduces_) return;
  if (!policy_->under_way())
    begin_pass(parameter);
  else if (adds_to_partly_reduced(parameter))
    fail(partly_reduced_text(names_[parameter]));
  using Meaning = PassPolicy::Arrival::Meaning;
  const PassPolicy::Arrival arrival = policy_->arrived(parameter);
  if (arrival.meaning == Meaning::kUnexpected)
    fail(unexpected_gradient_text(names_[parameter], policy_->rule()));
  if (arrival.meaning != Meaning::kFinal) return;
  const c10::AutoGradMode no_grad(false);
  take(parameter);
  start_buckets(arrival);
}

PassKind Reducer::forward_begins() {
  if (reduces_) saved_.forward_begins(sparse_->in_buckets());
  return policy_->forward_begins();
}

// Not for grad() and backward(inputs), after which other gradients may come,
// nor for a graph of gradients, which is refused.
void Reducer::backward_begins() {
  if (!reduces_ || policy_->under_way() || awaits_first_ ||
      !policy_->expects_reduced_pass() || is_pass_of_some_inputs() ||
      c10::GradMode::is_enabled() ||
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
bool Reducer::adds_to_partly_reduced(std::size_t parameter) {
  const auto found = partly_reduced_.find(parameter);
  if (found == partly_reduced_.end()) return false;
  SeenTensor& before = found->second;
  const at::Tensor& gradient = tensors_[parameter].grad();
  const bool adds = gradient.defined() && before.is_same(gradient) &&
                    version_of(gradient) == before.version() + 1;
  if (adds) before = SeenTensor(gradient);  // to notice another attempt too
  return adds;
}

void Reducer::note_partly_reduced() {
  partly_reduced_.clear();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!reduction_.operation().reduces_in_part(tensors_[i])) continue;
    const at::Tensor& gradient = tensors_[i].grad();
    if (gradient.defined()) partly_reduced_.emplace(i, SeenTensor(gradient));
  }
}

void Reducer::begin_pass(std::size_t first) {
  // What is thrown before begin() ends a pass of which nothing has begun;
  // afterwards abandon_pass() aborts the group.
  awaits_first_ = false;
  // A counter counts what it is asked of.
  if (policy_->has_counter()) refuse_create_graph();
  const PassKind kind = policy_->decide();
  if (adds_to_partly_reduced(first))
    throw InvalidArgument(partly_reduced_text(names_[first]));
  const Participation roll = participation_in(kind);
  at_end_of_backward(
      {.number = number_,
       .start_rest = [self =
                          shared_from_this()] { self->start_rest_of_pass(); },
       .finish = [self = shared_from_this()] { self->finish_pass(); },
       .abandon = [self = shared_from_this()] { self->abandon_pass(); }});
  policy_->begin(kind);
  if (kind == PassKind::kReduced) open_pass(roll, Moment::kBackward);
}

Participation Reducer::participation_in(PassKind kind) {
  if (kind == PassKind::kReduced) {
    refuse_create_graph();
    if (!policy_->has_counter())
      refuse_joins(group_, "gradients cannot be reduced");
    if (join_coordinator_)
      return join_coordinator_->announce(Activity::kBackward);
  }
  return full_participation(*group_, Activity::kBackward);
}

void Reducer::open_pass(const Participation& roll, Moment moment) {
  const c10::AutoGradMode no_grad(false);
  roll_ = roll;
  sparse_->begin_pass();
  reduction_.begin_pass(op_ == ReduceOp::kSum ? 1 : roll.divisor);
  reduction_.buckets().move_strangers_out(sparse_->in_buckets());
  begin_comparison(moment);
  const PassPolicy::Arrival ready = policy_->begin_reduction();
  for (const std::size_t parameter : policy_->never_here()) stand_in(parameter);
  start_buckets(ready);
}

bool Reducer::compares_replicas() const {
  return watch_ && !join_coordinator_ &&
         !reduction_.operation().replicas_may_differ() && !is_capturing();
}

void Reducer::begin_comparison(Moment moment) {
  if (!compares_replicas()) return;
  if (auto work = watch_->pass_begins(*order_, moment))
    reduction_.add(std::move(*work));
}

void Reducer::prepare(std::size_t parameter) {
  if (sparse_as_dense_)
    make_dense(tensors_[parameter]);
  else if (sparse_->prepare(parameter, names_[parameter]))
    reduction_.buckets().declare_incomplete();  // so that ranks tell of it
}

void Reducer::take(std::size_t parameter) {
  prepare(parameter);
  const at::Tensor& in_bucket = sparse_->in_buckets()[parameter];
  saved_.keep(parameter, in_bucket);
  reduction_.buckets().take(parameter, in_bucket, names_[parameter]);
}

void Reducer::stand_in(std::size_t parameter) {
  prepare(parameter);
  saved_.stand_in(parameter, sparse_->in_buckets()[parameter]);
  take(parameter);
}

void Reducer::start_buckets(const PassPolicy::Arrival& arrival) {
  LOCKSTEP_CHECK(
      arrival.bucket_count == 0 || arrival.first_bucket == reduction_.started(),
      "buckets are started in the order of the plan");
  for (std::size_t i = 0; i < arrival.bucket_count; ++i)
    reduction_.start_next();
}

void Reducer::start_rest_of_pass() {
  if (policy_->under_way() == PassKind::kReduced)
    missing_ = start_rest(Part::kTrains);
}

void Reducer::finish_pass() {
  if (policy_->end() == PassKind::kReduced) close_pass(Part::kTrains, missing_);
}

void Reducer::shadow_pass(const Participation& roll) {
  for (const at::Tensor& tensor : tensors_) tensor.mutable_grad().reset();
  open_pass(roll, Moment::kAbsent);
  close_pass(Part::kShadows, start_rest(Part::kShadows));
}

bool Reducer::is_true_somewhere(bool here) {
  std::vector<std::int64_t> flag{here ? 1 : 0};
  order_
      ->all_reduce(view(flag), ReduceOp::kMax,
                   {.label = "whether a rank has more gradients"})
      .wait();
  return flag[0] != 0;
}

void Reducer::reduce_held(Held held) {
  LOCKSTEP_CHECK(policy_->rule() != PassPolicy::Rule::kAsAtFirst,
                 "a static graph has no gradients outside its passes");
  if (!reduces_) return;
  const c10::AutoGradMode no_grad(false);
  try {
    open_pass(full_participation(*group_, Activity::kBackward), Moment::kStep);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].grad().defined()) continue;
      if (held == Held::kOfLocalPasses && !policy_->has_local_gradient(i))
        continue;
      const PassPolicy::Arrival arrival = policy_->held(i);
      take(i);
      start_buckets(arrival);
    }
  } catch (...) {
    abort_pass();
    throw;
  }
  close_pass(Part::kTrains, start_rest(Part::kTrains));
}

// Returns what is missing here, where others have been told of it.
Reducer::Indices Reducer::start_rest(Part part) {
  if (reduction_.started() == bucket_count()) return {};
  const c10::AutoGradMode no_grad(false);
  try {
    return start_incomplete_buckets(part);
  } catch (...) {
    policy_->end();
    abort_pass();  // the others wait for what cannot be started
    throw;
  }
}

void Reducer::close_pass(Part part, const Indices& missing) {
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
  policy_->reduced(incomplete);
  settle_gradients(part);
  note_partly_reduced();
  policy_->end_reduction(part);
  if (!follows_arrival_ || sparse_->has_learnt()) plan_in_order_of_arrival();
  if (part == Part::kTrains) group_->core().count_reduced_pass();
  if (watch_) watch_->pass_ends(*order_);
}

// Returns those that this rank has told the others of.
Reducer::Indices Reducer::start_incomplete_buckets(Part part) {
  for (const std::size_t parameter : policy_->partly_arrived()) take(parameter);
  Indices missing = policy_->missing();
  for (const std::size_t parameter : missing) stand_in(parameter);
  if (part == Part::kTrains)
    missing = policy_->worth_telling(std::move(missing));
  else
    missing.clear();
  if (!missing.empty() || policy_->expects_more())
    reduction_.buckets().declare_incomplete();
  while (reduction_.started() < bucket_count()) reduction_.start_next();
  return missing;
}

// What no rank has used, and what is sparse.
void Reducer::learn_from_all(Part part, const Indices& missing) {
  using Mark = MissingGradients::Mark;
  std::vector<Mark> marks(tensors_.size(), Mark::kAbsent);
  if (part == Part::kTrains)
    for (std::size_t i = 0; i < marks.size(); ++i)
      marks[i] = sparse_->mark_of(i);
  for (const std::size_t parameter : missing) marks[parameter] = Mark::kMissing;
  const MissingGradients all(*order_, marks);
  if (all.some_missing() && !policy_->allows_missing()) {
    saved_.settle([](std::size_t) { return true; });
    policy_->drop_gradients();
    throw InvalidArgument(
        missing_gradients_text(*group_, policy_->rule(), all.lines(names_)));
  }
  sparse_->learn(all);
  if (!all.some_missing()) return;
  std::vector<char> unused(tensors_.size());
  for (std::size_t i = 0; i < unused.size(); ++i)
    unused[i] = all.everywhere(i) ? 1 : 0;
  policy_->set_unused(std::move(unused));
}

void Reducer::reduce_sparse_gradients(Part part) {
  using Result = SparseGradients::Result;
  sparse_->reduce(
      *order_, op_ == ReduceOp::kSum ? 1 : roll_.divisor,
      [this](std::size_t parameter) { return policy_->unused(parameter); },
      part == Part::kTrains ? Result::kKept : Result::kDropped);
}

void Reducer::settle_gradients(Part part) {
  if (const double divisor = reduction_.left_to_divide_by(); divisor != 1)
    divide_gradients(sparse_->in_buckets(), divisor);
  saved_.settle([&](std::size_t parameter) {
    return part == Part::kShadows || policy_->unused(parameter);
  });
  sparse_->end_pass();
}

void Reducer::abandon_pass() noexcept {
  if (policy_->abandon() == PassKind::kReduced) return abort_pass();
  // In a local pass no rank waits in this group, but perhaps in others.
  reduction_.abort_others("rank " + std::to_string(group_->rank()) +
                          " left its backward pass by an exception; read its "
                          "log");
}

void Reducer::abort_pass() noexcept {
  reduction_.abort("rank " + std::to_string(group_->rank()) +
                   " left its backward pass by an exception, with gradients of "
                   "this step still to be reduced; read its log");
}

// The others hear the reason, and not only that this rank has left its pass.
void Reducer::fail(const std::string& why) {
  reduction_.abort("on rank " + std::to_string(group_->rank()) + " " + why);
  throw InvalidArgument(why);
}

// Gradients may arrive in another order on each rank; one rank's is taken, so
// that all have one plan.
void Reducer::plan_in_order_of_arrival() {
  const Indices arrived = policy_->arrival_order();
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

void Reducer::watch_output(const at::Tensor& output) {
  call_when_gradient_comes(output, [reducer = weak_from_this()] {
    if (const auto alive = reducer.lock()) alive->backward_begins();
  });
}

}  // namespace lockstep
