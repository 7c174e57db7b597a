// Converts between LibTorch's optimizers and the update kernels: options to
// rules, a parameter's state to tensors, gradients to memory.
//
// FusedSGD, FusedAdam, FusedAdamW and ZeroRedundancyOptimizer share it.
//
// Errors:  InvalidArgument, with the parameter's position in the optimizer, for
//          what the kernels do not support: sparse gradients, other devices,
//          other types than the four floating-point ones, memory with gaps.
#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/planning/bucket_plan.h"
#include "src/planning/update_kernels.h"

namespace lockstep {

// The rule for the options of SGD, Adam or AdamW. InvalidArgument for numbers
// out of range, for amsgrad and for the options of other optimizers.
UpdateRule update_rule(const torch::optim::OptimizerOptions& options);

// An optimizer's state of a parameter or of a piece of it.
struct UpdateState {
  // Steps made; for SGD only whether a step with momentum was made.
  std::int64_t step = 0;
  // state_count() tensors, each with as many elements as the parameter or
  // piece; the rest, and all before the first step, are undefined.
  std::array<at::Tensor, 2> numbers{};
};

// Converts from LibTorch's form, which may be null, and back; write_state()
// makes `state` when it is null. Tensors are shared, not copied. SGD without
// momentum keeps no state; write_state() then writes nothing.
UpdateState read_state(const torch::optim::OptimizerParamState* state);
void write_state(const UpdateState& from, const UpdateRule& rule,
                 std::unique_ptr<torch::optim::OptimizerParamState>& state);

// A parameter and its position in the optimizer, for messages.
struct OptimizedParameter {
  at::Tensor tensor{};
  std::size_t group = 0;
  std::size_t index = 0;  // in the group
};

// The parameters of all groups. A parameter that is listed several times, as
// tied weights are in LibTorch's module.parameters(), counts once.
std::vector<OptimizedParameter> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

std::vector<at::Tensor> tensors_of(
    std::span<const OptimizedParameter> parameters);

// Two parameters with dense memory that overlaps, by index, in order.
using ParameterPair = std::pair<std::size_t, std::size_t>;
std::optional<ParameterPair> sharing_memory(
    std::span<const OptimizedParameter> parameters);

// The size of the parameter; throws unless the kernels can update it.
ParameterSize size_of_updatable(const OptimizedParameter& parameter);

// The type of the kernels' state for the parameter.
at::ScalarType state_scalar_type(const at::Tensor& parameter);

// Whether the parameter has no gradient, or one that is neither sparse nor of a
// wider type than the parameter's. check_gradient() throws otherwise.
bool has_usable_gradient(const OptimizedParameter& parameter);
void check_gradient(const OptimizedParameter& parameter);

// The parameter's gradient in the parameter's memory order and type, or in
// `type`, copied only if necessary; undefined when the parameter has no
// gradient. The first throws where check_gradient() does, the second for a
// sparse gradient.
at::Tensor gradient_of(const OptimizedParameter& parameter);
at::Tensor gradient_of(const OptimizedParameter& parameter,
                       at::ScalarType type);

// `state` in the memory order of `parameter` and the type that the kernels
// need; copied only if necessary. It has the parameter's shape.
at::Tensor state_for(const OptimizedParameter& parameter,
                     const at::Tensor& state);

// All elements in the order in which they lie in memory.
at::Tensor in_memory_order(const at::Tensor& dense);

// The memory of a tensor's elements from `begin` on, for the kernels.
std::byte* bytes_at(const at::Tensor& dense, std::size_t begin);

}  // namespace lockstep
