#include "src/planning/update_kernels.h"

#include <cmath>

#include "lockstep/base/error.h"
#include "src/planning/update_numbers.h"

namespace lockstep {

// Defined by update_kernels.inc, once for each instruction set.
UpdateKernels update_kernels_portable();
#if defined(__x86_64__)
UpdateKernels update_kernels_avx2();
UpdateKernels update_kernels_avx512();
#endif

namespace {

UpdateKernels kernels_for(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return update_kernels_avx512();
  if (set == InstructionSet::kAvx2) return update_kernels_avx2();
#endif
  return update_kernels_portable();
}

SgdNumbers numbers_of(const SgdRule& rule, const Update& update) {
  using Direction = SgdNumbers::Direction;
  SgdNumbers numbers{.scale = update.gradient_scale,
                     .decay = rule.weight_decay,
                     .momentum = rule.momentum,
                     .negative_rate = -rule.learning_rate};
  if (rule.momentum == 0) return numbers;
  numbers.direction = rule.nesterov ? Direction::kNesterov : Direction::kBuffer;
  // The first gradient becomes the buffer, undampened.
  if (update.step == 1) return numbers;
  numbers.kept = rule.momentum;
  numbers.taken = 1 - rule.dampening;
  return numbers;
}

AdamNumbers numbers_of(const AdamRule& rule, const Update& update) {
  const auto steps = static_cast<double>(update.step);
  const double correction1 = 1 - std::pow(rule.beta1, steps);
  const double correction2 = 1 - std::pow(rule.beta2, steps);
  const bool of_gradient = rule.decay == AdamRule::Decay::kOfGradient;
  return {
      .scale = update.gradient_scale,
      .decay = of_gradient ? rule.weight_decay : 0,
      .kept1 = rule.beta1,
      .taken1 = 1 - rule.beta1,
      .kept2 = rule.beta2,
      .taken2 = 1 - rule.beta2,
      .shrink = of_gradient ? 1 : 1 - rule.learning_rate * rule.weight_decay,
      .root = std::sqrt(correction2),
      .eps = rule.eps,
      .negative_rate = -rule.learning_rate / correction1};
}

}  // namespace

std::size_t state_count(const UpdateRule& rule) {
  if (const auto* sgd = std::get_if<SgdRule>(&rule))
    return sgd->momentum == 0 ? 0 : 1;
  return 2;
}

DataType state_type(DataType type) {
  return type == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}

void apply_update(const Update& update, const UpdatePiece& piece,
                  InstructionSet set) {
  LOCKSTEP_CHECK(is_floating_point(piece.type), "an update of integers");
  LOCKSTEP_CHECK(update.step >= 1, "steps are counted from 1");
  for (std::size_t i = 0; i < state_count(update.rule); ++i)
    LOCKSTEP_CHECK(piece.state[i] != nullptr || piece.elements == 0,
                   "the rule needs state");
  const UpdateKernels kernels = kernels_for(set);
  if (const auto* sgd = std::get_if<SgdRule>(&update.rule))
    return kernels.sgd(numbers_of(*sgd, update), piece);
  kernels.adam(numbers_of(std::get<AdamRule>(update.rule), update), piece);
}

double sum_of_squares(const std::byte* elements, std::size_t count,
                      DataType type, InstructionSet set) {
  LOCKSTEP_CHECK(is_floating_point(type), "a norm of integers");
  return kernels_for(set).sum_of_squares(elements, count, type);
}

}  // namespace lockstep
