#include "src/torch/frontends/horovod/passes_per_step.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::horovod {
namespace {

int checked(int passes) {
  if (passes < 1)
    throw InvalidArgument("a step cannot take " + std::to_string(passes) +
                          " backward passes; the least is 1");
  return passes;
}

}  // namespace

PassesPerStep::Count::Count(const std::vector<NamedParameter>& parameters,
                            ReduceOp op, int passes)
    : op_(op),
      in_step_(checked(passes)),
      passes_(parameters.size(), 0),
      last_(parameters.size(), 0) {
  for (const NamedParameter& parameter : parameters)
    names_.push_back(parameter.name);
}

void PassesPerStep::Count::announce_to(
    std::shared_ptr<JoinAnnouncements> announcements, std::int64_t number) {
  announcements_ = std::move(announcements);
  number_ = number;
}

void PassesPerStep::Count::announce_gradients() {
  announcements_->announce_gradients(number_);
}

void PassesPerStep::Count::announce_question() {
  announcements_->announce_question(number_);
}

void PassesPerStep::Count::begin_anew() {
  pass_ = 0;
  std::ranges::fill(passes_, 0);
  std::ranges::fill(last_, 0);
  reduced_ = more_ = ended_ = refused_one_ = joined_ = false;
  announcements_->end_gradients();
}

void PassesPerStep::Count::begin_as_joined() {
  begin_anew();
  joined_ = true;
}

PassKind PassesPerStep::Count::begins() {
  if (ended_) begin_anew();
  if (pass_ >= in_step_ && !more_) {
    refused_one_ = true;
    throw InvalidArgument(
        "a backward pass more than the " + std::to_string(in_step_) +
        " that a step takes: the gradients of those are reduced already\n"
        "  next:    call step(), synchronize() or zero_grad() before it, or "
        "raise backward_passes_per_step");
  }
  if (pass_ + 1 == in_step_) announce_gradients();
  return ++pass_ == in_step_ ? PassKind::kReduced : PassKind::kLocal;
}

void PassesPerStep::Count::arrived(std::size_t parameter) {
  if (std::exchange(last_[parameter], pass_) == pass_) return;
  if (++passes_[parameter] <= in_step_) return;
  refused_one_ = true;
  throw InvalidArgument("parameter " + names_[parameter] +
                        " is in a backward pass more than the " +
                        std::to_string(in_step_) +
                        " that a step takes: its gradient is reduced already\n"
                        "  next:    call step(), synchronize() or zero_grad() "
                        "before it, or raise "
                        "backward_passes_per_step");
}

bool PassesPerStep::Count::expects_more() const {
  return !joined_ && std::ranges::any_of(passes_, [this](int passes) {
    return passes < in_step_;
  });
}

// What a later pass adds to a sum would be added to it once a rank.
void PassesPerStep::Count::reduced(bool some_rank_is_incomplete) {
  more_ = !reduced_ && some_rank_is_incomplete && op_ == ReduceOp::kAverage;
  reduced_ = true;
  announcements_->end_gradients();
}

// What it has added to an average would make this rank's differ.
void PassesPerStep::Count::abandoned() noexcept {
  refused_one_ = refused_one_ || reduced_;
  announcements_->end_gradients();
}

void PassesPerStep::Count::end() {
  more_ = false;
  ended_ = true;
}

void PassesPerStep::Count::check_none_refused() const {
  if (refused_one_)
    throw InvalidArgument(
        "gradients hold part of a backward pass that was refused, or ended by "
        "an exception\n"
        "  next:    call zero_grad() and make the passes of this step again");
}

// What a joined rank does for an optimizer of its own.
class PassesPerStep::TakesPartAsJoined final : public JoinedGradients {
 public:
  TakesPartAsJoined(std::shared_ptr<Count> count,
                    std::shared_ptr<Reducer> reducer,
                    std::shared_ptr<ProcessGroup> group,
                    std::vector<at::Tensor> parameters)
      : count_(std::move(count)),
        reducer_(std::move(reducer)),
        group_(std::move(group)),
        parameters_(std::move(parameters)) {}

  void take_part(HorovodCall::Kind kind) override {
    if (kind == HorovodCall::Kind::kMoreGradients) {
      reducer_->is_true_somewhere(false);
      return;
    }
    count_->begin_as_joined();
    reducer_->shadow_pass(full_participation(*group_, Activity::kBackward));
    count_->begin_anew();
  }

  void forget_passes() override {
    if (!count_->is_reduced())
      for (at::Tensor& parameter : parameters_)
        parameter.mutable_grad().reset();
    count_->begin_anew();
  }

 private:
  std::shared_ptr<Count> count_;
  std::shared_ptr<Reducer> reducer_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<at::Tensor> parameters_;
};

namespace {

std::vector<at::Tensor> tensors_of(
    const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters)
    tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

PassesPerStep::PassesPerStep(std::vector<NamedParameter> parameters,
                             const std::shared_ptr<ProcessGroup>& group,
                             const ReducerOptions& options, int passes)
    : count_(std::make_shared<Count>(parameters, options.op, passes)),
      reducer_(Reducer::make(parameters, group, options)),
      alone_(group->size() == 1),
      as_joined_(std::make_shared<TakesPartAsJoined>(count_, reducer_, group,
                                                     tensors_of(parameters))) {
  auto announcements = JoinAnnouncements::of(group);
  const std::int64_t number = announcements->enroll(as_joined_);
  count_->announce_to(std::move(announcements), number);
  reducer_->count_passes_by(count_);
}

bool PassesPerStep::are_synchronized() const {
  return alone_ || (count_->is_reduced() && !count_->may_have_more());
}

// Whether any rank has made more passes is asked only where all know that one
// may have, from the reduction before.
void PassesPerStep::synchronize() {
  count_->check_none_refused();
  if (alone_) return;
  if (!count_->is_reduced()) {
    count_->announce_gradients();
    reducer_->reduce_now();
  }
  if (count_->may_have_more()) {
    count_->announce_question();
    if (reducer_->is_true_somewhere(count_->has_more())) {
      count_->announce_gradients();
      reducer_->reduce_local_passes();
    }
  }
  count_->end();
}

}  // namespace lockstep::horovod
