// What an optimizer's step does to memory: SGD, Adam and AdamW on raw elements,
// in one pass.
//
// LibTorch's optimizers are written as tensor operations, each of which reads
// and writes all of its tensors: SGD with momentum goes over memory three
// times, Adam about ten. Here an element's gradient, state and value are read
// once, and state and value written once.
//
// The same source is compiled for several instruction sets and chosen at run
// time. All of them give the same bits, wherever a parameter is cut: nothing
// depends on an element's neighbours. LibTorch fuses multiplications into
// additions where the CPU can, so that its results differ in the last bits.
//
// float16 and bfloat16 parameters are computed with in float32 and rounded
// once; their state is float32.
//
// Threads: pure functions of the memory that they are given.
// Source:  the arithmetic, to the order of operations, is that of
//          torch::optim::SGD, Adam and AdamW (Kingma and Ba, 2015; Loshchilov
//          and Hutter, 2019).
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "lockstep/base/data_type.h"
#include "lockstep/base/instruction_set.h"

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
    kOfParameter,  // AdamW: learning_rate x weight_decay x value is taken off
  };
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  Decay decay = Decay::kOfGradient;
};

using UpdateRule = std::variant<SgdRule, AdamRule>;

// Numbers of state that the rule keeps for each element: 0 or 1 for SGD (the
// momentum buffer), 2 for Adam (the averages of the gradient and its square).
std::size_t state_count(const UpdateRule& rule);

// The type of the state of parameters of type `type`.
DataType state_type(DataType type);

struct Update {
  UpdateRule rule{};
  // Of this parameter, counted from 1. State is all zeros before the first.
  std::int64_t step = 1;
  // What gradients are multiplied with as they are read: to clip or unscale.
  double gradient_scale = 1;
};

// Consecutive elements of one parameter. `state` has state_count() addresses of
// as many elements of state_type(type). No two overlap. Addresses need only the
// alignment of an element.
struct UpdatePiece {
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  std::byte* state[2] = {nullptr, nullptr};
  std::size_t elements = 0;
  DataType type = DataType::kFloat32;  // of parameter and gradient
};

// Makes one step on a piece; its type is one of floating point.
void apply_update(const Update& update, const UpdatePiece& piece,
                  InstructionSet set = best_instruction_set());

// The sum of the squares of `count` elements of one of the floating-point
// types, in float64; the same bits on every CPU.
double sum_of_squares(const std::byte* elements, std::size_t count,
                      DataType type,
                      InstructionSet set = best_instruction_set());

}  // namespace lockstep
