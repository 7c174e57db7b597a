// Between LibTorch's optimizers and the update kernels: options as rules, a
// parameter's state as tensors, gradients as memory.
//
// What FusedSGD and its kind and ZeroRedundancyOptimizer have in common.
//
// Threads: functions of their arguments.
// Errors:  InvalidArgument, with the parameter's place in the optimizer, for
//          what the kernels cannot do: sparse gradients, other devices, other
//          types than the four of floating point, memory with gaps.
#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/update_kernels.h"

namespace lockstep {

// The rule that options of SGD, Adam or AdamW ask for. InvalidArgument for
// numbers out of range, for amsgrad and for the options of other optimizers.
UpdateRule update_rule(const torch::optim::OptimizerOptions& options);

// What an optimizer keeps of a parameter or of a piece of it.
struct UpdateState {
  // Steps made; of SGD only whether there was one with momentum.
  std::int64_t step = 0;
  // state_count() tensors, as many elements each as the parameter or piece; the
  // rest, and all before the first step, are undefined.
  std::array<at::Tensor, 2> numbers{};
};

// From LibTorch's form, which may be null, and back; `state` is made when it is
// null. Tensors are shared, not copied. SGD without momentum keeps no state, so
// there is none to write.
UpdateState read_state(const torch::optim::OptimizerParamState* state);
void write_state(const UpdateState& from, const UpdateRule& rule,
                 std::unique_ptr<torch::optim::OptimizerParamState>& state);

// A parameter and where its optimizer has it, for messages.
struct OptimizedParameter {
  at::Tensor tensor{};
  std::size_t group = 0;
  std::size_t index = 0;  // in the group
};

// The parameters of all groups. One that is there several times, as tied
// weights are in LibTorch's module.parameters(), counts once.
std::vector<OptimizedParameter> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

std::vector<at::Tensor> tensors_of(
    std::span<const OptimizedParameter> parameters);

// Two parameters, by index and in this order, of which some memory is the
// same; among those whose memory is dense.
using ParameterPair = std::pair<std::size_t, std::size_t>;
std::optional<ParameterPair> sharing_memory(
    std::span<const OptimizedParameter> parameters);

// Throws unless the kernels can update the parameter; otherwise its size.
ParameterSize size_of_updatable(const OptimizedParameter& parameter);

// The type of what the kernels keep for the parameter.
at::ScalarType state_scalar_type(const at::Tensor& parameter);

// Whether the parameter has no gradient, or one that is neither sparse nor of a
// type with digits that the parameter's own has not; and what throws otherwise.
bool has_usable_gradient(const OptimizedParameter& parameter);
void check_gradient(const OptimizedParameter& parameter);

// The parameter's gradient in the parameter's memory order and type, or in
// `type`, copied only if it is not so already; undefined when there is none.
// The first throws where check_gradient() does, the second for a sparse one.
at::Tensor gradient_of(const OptimizedParameter& parameter);
at::Tensor gradient_of(const OptimizedParameter& parameter,
                       at::ScalarType type);

// `state` in the memory order of `parameter` and the type that the kernels
// want; copied only if it is not so already. It has the parameter's shape.
at::Tensor state_for(const OptimizedParameter& parameter,
                     const at::Tensor& state);

// All elements in the order in which they lie in memory.
at::Tensor in_memory_order(const at::Tensor& dense);

// What the kernels work on: elements of a tensor from `begin` on.
std::byte* bytes_at(const at::Tensor& dense, std::size_t begin);

}  // namespace lockstep
