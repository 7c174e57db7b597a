// Optimizer updates on raw memory: SGD, Adam and AdamW, in one pass.
//
// LibTorch's optimizers are sequences of tensor operations, each of which reads
// and writes all of its tensors: SGD with momentum passes over memory three
// times, Adam about ten times. These kernels read an element's gradient, state
// and value once, and write state and value once.
//
// The same source is compiled for several instruction sets; the best is chosen
// at run time. All of them give the same bits, wherever a parameter is cut,
// because an element's result does not depend on its neighbours. LibTorch uses
// fused multiply-add where the CPU has it, so its results differ in the last
// bits.
//
// Updates of float16 and bfloat16 parameters are computed in float32 and
// rounded once; their state is float32.
//
// Source:  arithmetic and order of operations are those of torch::optim::SGD,
//          Adam and AdamW (Kingma and Ba, 2015; Loshchilov and Hutter, 2019).
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "lockstep/base/buffer.h"
#include "src/base/instruction_set.h"

namespace lockstep {

struct SgdRule {
  double learning_rate = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

struct AdamRule {
  enum class Decay {
    kOfGradient,   // Adam: weight_decay x value is added to the gradient
    kOfParameter,  // AdamW: learning_rate x weight_decay x value is subtracted
  };
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  Decay decay = Decay::kOfGradient;
};

using UpdateRule = std::variant<SgdRule, AdamRule>;

// The number of state values per element: 0 or 1 for SGD (the momentum buffer),
// 2 for Adam (the averages of the gradient and its square).
std::size_t state_count(const UpdateRule& rule);

// The type of the state of parameters of type `type`.
DataType state_type(DataType type);

struct Update {
  UpdateRule rule{};
  // The step number of this parameter, from 1. State is all zeros before the
  // first step.
  std::int64_t step = 1;
  // The factor for gradients as they are read: to clip or unscale.
  double gradient_scale = 1;
};

// Consecutive elements of one parameter. `state` has state_count() addresses,
// each of `elements` elements of state_type(type). The ranges do not overlap.
// Addresses need only an element's alignment.
struct UpdatePiece {
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  std::byte* state[2] = {nullptr, nullptr};
  std::size_t elements = 0;
  DataType type = DataType::kFloat32;  // of parameter and gradient
};

// Makes one step on a piece of a floating-point type.
void apply_update(const Update& update, const UpdatePiece& piece,
                  InstructionSet set = best_instruction_set());

// The sum of the squares of `count` elements of a floating-point type, in
// float64; the same bits on every CPU.
double sum_of_squares(const std::byte* elements, std::size_t count,
                      DataType type,
                      InstructionSet set = best_instruction_set());

}  // namespace lockstep
