#include "src/torch/optim/optimizer_shard.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/optim/device_update.h"

namespace lockstep {
namespace {

std::vector<ParameterSize> sizes_of(
    std::span<const OptimizedParameter> parameters) {
  std::vector<ParameterSize> sizes;
  for (const auto& parameter : parameters)
    sizes.push_back(size_of_updatable(parameter));
  return sizes;
}

bool are_the_same(std::span<const OptimizedParameter> some,
                  std::span<const OptimizedParameter> others) {
  return std::ranges::equal(some, others, [](const auto& a, const auto& b) {
    return a.tensor.is_same(b.tensor) && a.group == b.group;
  });
}

[[noreturn]] void refuse_other_parameters() {
  throw InvalidArgument(
      "the parameters of a sharded optimizer changed after it was made"
      "\n  next:    add groups with its own add_param_group(); otherwise "
      "make a new optimizer of all parameters, in groups if they need "
      "different options, and copy the state with load_state_dict()");
}

// Appends the parameters of `more` to `plan`.
void append(ShardPlan& plan, const ShardPlan& more) {
  const std::size_t known = plan.parameters.size();
  for (const auto& owners : more.parameters) {
    auto& appended = plan.parameters.emplace_back(owners);
    for (auto& owner : appended)
      owner.position += plan.ranks[owner.rank].size();
  }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (ShardPlan::Piece piece : more.ranks[rank]) {
      piece.parameter += known;
      plan.ranks[rank].push_back(piece);
    }
}

}  // namespace

OptimizerShard::OptimizerShard(const Groups& groups, int ranks, int rank)
    : parameters_(parameters_of(groups)),
      rank_(rank),
      plan_(
          plan_shards(sizes_of(parameters_), static_cast<std::size_t>(ranks))),
      states_(pieces().size()) {
  begin_step(groups, 1);  // refuses unsupported options
}

void OptimizerShard::add_parameters(const Groups& groups) {
  auto present = parameters_of(groups);
  const std::size_t known = parameters_.size();
  if (present.size() < known ||
      !are_the_same(std::span(present).first(known), parameters_))
    refuse_other_parameters();
  for (const auto& group : groups) update_rule(group.options());
  const ShardPlan added = plan_shards(
      sizes_of(std::span(present).subspan(known)), plan_.ranks.size());
  append(plan_, added);
  parameters_ = std::move(present);
  states_.resize(pieces().size());
}

void OptimizerShard::begin_step(const Groups& groups, double gradient_scale) {
  if (!are_the_same(parameters_of(groups), parameters_))
    refuse_other_parameters();
  rules_.clear();
  for (const auto& group : groups)
    rules_.push_back(update_rule(group.options()));
  gradient_scale_ = gradient_scale;
}

void OptimizerShard::begin_piece(std::size_t piece) {
  const ShardPlan::Piece& place = pieces()[piece];
  const OptimizedParameter& parameter = parameters_[place.parameter];
  UpdateState& state = states_[piece];
  ++state.step;
  for (std::size_t i = 0; i < state_count(rules_[parameter.group]); ++i) {
    if (state.numbers[i].defined()) continue;
    state.numbers[i] =
        at::zeros({static_cast<std::int64_t>(place.elements)},
                  at::TensorOptions(parameter.tensor.device())
                      .dtype(state_scalar_type(parameter.tensor)));
    state.step = 1;  // earlier steps without momentum do not count
  }
}

void OptimizerShard::update(std::size_t piece, std::size_t offset,
                            std::span<const std::byte> gradient) const {
  const ShardPlan::Piece& place = pieces()[piece];
  const OptimizedParameter& parameter = parameters_[place.parameter];
  const UpdateRule& rule = rules_[parameter.group];
  const UpdateState& state = states_[piece];
  UpdatePiece elements{
      .parameter = bytes_at(parameter.tensor, place.begin + offset),
      .gradient = gradient.data(),
      .elements = gradient.size() /
                  static_cast<std::size_t>(parameter.tensor.element_size()),
      .type = data_type_of(parameter.tensor.scalar_type())};
  LOCKSTEP_CHECK(offset + elements.elements <= place.elements,
                 "a range that is not in the piece");
  for (std::size_t i = 0; i < state_count(rule); ++i)
    elements.state[i] = bytes_at(state.numbers[i], offset);
  apply_update({rule, state.step, gradient_scale_}, elements);
}

void OptimizerShard::update_on_devices(
    std::span<const PieceGradient> gradients) const {
  std::vector<DeviceUpdate> updates;
  for (const auto& [piece, gradient] : gradients) {
    const ShardPlan::Piece& place = pieces()[piece];
    const OptimizedParameter& parameter = parameters_[place.parameter];
    updates.push_back({.rule = parameter.group,
                       .parameter = part_of(parameter.tensor, place),
                       .gradient = part_of(gradient, place),
                       .state = states_[piece]});
  }
  lockstep::update_on_devices(rules_, updates, gradient_scale_);
}

at::Tensor OptimizerShard::part_of(const at::Tensor& dense,
                                   const ShardPlan::Piece& piece) {
  return in_memory_order(dense).narrow(
      0, static_cast<std::int64_t>(piece.begin),
      static_cast<std::int64_t>(piece.elements));
}

void OptimizerShard::set_state(std::size_t piece, UpdateState state) {
  states_[piece] = std::move(state);
}

std::size_t OptimizerShard::state_bytes() const {
  std::size_t bytes = 0;
  for (const UpdateState& state : states_)
    for (const at::Tensor& numbers : state.numbers)
      if (numbers.defined()) bytes += numbers.nbytes();
  return bytes;
}

}  // namespace lockstep
