#include "src/planning/update_kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace lockstep {
namespace {

constexpr std::array kFloatingTypes{DataType::kFloat32, DataType::kFloat64,
                                    DataType::kFloat16, DataType::kBFloat16};

std::vector<InstructionSet> sets_of_this_cpu() {
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(best_instruction_set()); ++set)
    sets.push_back(static_cast<InstructionSet>(set));
  return sets;
}

struct NamedRule {
  const char* name;
  UpdateRule rule;
};

const std::vector<NamedRule>& rules() {
  static const std::vector<NamedRule> rules{
      {"SGD", SgdRule{.learning_rate = 0.1}},
      {"SGD with decay", SgdRule{.learning_rate = 0.1, .weight_decay = 0.02}},
      {"SGD with momentum", SgdRule{.learning_rate = 0.1, .momentum = 0.9}},
      {"SGD with dampening and decay", SgdRule{.learning_rate = 0.1,
                                               .momentum = 0.7,
                                               .dampening = 0.3,
                                               .weight_decay = 0.02}},
      {"SGD with Nesterov's momentum",
       SgdRule{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}},
      {"Nesterov with decay", SgdRule{.learning_rate = 0.1,
                                      .momentum = 0.9,
                                      .weight_decay = 0.02,
                                      .nesterov = true}},
      {"Adam", AdamRule{.learning_rate = 0.01}},
      {"Adam with decay", AdamRule{.learning_rate = 0.01,
                                   .beta1 = 0.8,
                                   .beta2 = 0.95,
                                   .eps = 1e-5,
                                   .weight_decay = 0.02}},
      {"AdamW", AdamRule{.learning_rate = 0.01,
                         .weight_decay = 0.1,
                         .decay = AdamRule::Decay::kOfParameter}},
  };
  return rules;
}

// The naive version, in `T`: an element's value and its state.
template <class T>
struct Element {
  T value = 0;
  T state[2] = {0, 0};
};

template <class T>
void step(const SgdRule& rule, const Update& update, T gradient,
          Element<T>& at) {
  T d = gradient * T(update.gradient_scale);
  if (rule.weight_decay != 0) d = d + T(rule.weight_decay) * at.value;
  if (rule.momentum != 0) {
    at.state[0] = update.step == 1 ? d
                                   : at.state[0] * T(rule.momentum) +
                                         d * T(1 - rule.dampening);
    d = rule.nesterov ? d + T(rule.momentum) * at.state[0] : at.state[0];
  }
  at.value = at.value + T(-rule.learning_rate) * d;
}

template <class T>
void step(const AdamRule& rule, const Update& update, T gradient,
          Element<T>& at) {
  const double steps = static_cast<double>(update.step);
  const bool l2 = rule.decay == AdamRule::Decay::kOfGradient;
  T d = gradient * T(update.gradient_scale);
  if (!l2)
    at.value = at.value * T(1 - rule.learning_rate * rule.weight_decay);
  else if (rule.weight_decay != 0)
    d = d + T(rule.weight_decay) * at.value;
  at.state[0] = at.state[0] * T(rule.beta1) + d * T(1 - rule.beta1);
  at.state[1] = at.state[1] * T(rule.beta2) + T(1 - rule.beta2) * d * d;
  const T denominator =
      std::sqrt(at.state[1]) / T(std::sqrt(1 - std::pow(rule.beta2, steps))) +
      T(rule.eps);
  const T rate = T(-rule.learning_rate / (1 - std::pow(rule.beta1, steps)));
  at.value = at.value + rate * at.state[0] / denominator;
}

// Elements of `type` in memory.
template <class T>
class Memory {
 public:
  Memory(DataType type, std::size_t count)
      : type_(type), bytes_(count * size_of(type)) {}

  std::byte* at(std::size_t i) { return bytes_.data() + i * size_of(type_); }
  T get(std::size_t i) {
    if (type_ == DataType::kFloat16) return to_float(read<Float16>(i));
    if (type_ == DataType::kBFloat16) return to_float(read<BFloat16>(i));
    return read<T>(i);
  }
  void set(std::size_t i, T number) {
    if (type_ == DataType::kFloat16)
      return write(i, to_float16(static_cast<float>(number)));
    if (type_ == DataType::kBFloat16)
      return write(i, to_bfloat16(static_cast<float>(number)));
    write(i, number);
  }

 private:
  template <class Stored>
  Stored read(std::size_t i) {
    Stored stored;
    std::memcpy(&stored, at(i), sizeof stored);
    return stored;
  }
  template <class Stored>
  void write(std::size_t i, Stored stored) {
    std::memcpy(at(i), &stored, sizeof stored);
  }

  DataType type_;
  std::vector<std::byte> bytes_;
};

template <class T>
struct Parameter {
  Parameter(DataType of, std::size_t elements)
      : type(of),
        count(elements),
        value(of, elements),
        gradient(of, elements),
        average(state_type(of), elements),
        square(state_type(of), elements) {}

  void apply(const Update& update, std::size_t begin, std::size_t end,
             InstructionSet set) {
    apply_update(update,
                 {.parameter = value.at(begin),
                  .gradient = gradient.at(begin),
                  .state = {average.at(begin), square.at(begin)},
                  .elements = end - begin,
                  .type = type},
                 set);
  }

  DataType type;
  std::size_t count;
  Memory<T> value, gradient, average, square;
};

constexpr std::size_t kCount = 1237;  // not a multiple of any vector width

// Makes steps with the kernels, each on three randomly cut pieces, and with the
// naive version.
template <class T>
void compare(DataType type, const UpdateRule& rule, InstructionSet set,
             std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> number;
  Parameter<T> parameter(type, kCount);
  std::vector<Element<T>> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    parameter.value.set(i, static_cast<T>(number(random)));
    expected[i].value = parameter.value.get(i);
  }
  for (std::int64_t count = 1; count <= 20; ++count) {
    const Update update{
        .rule = rule, .step = count, .gradient_scale = count > 10 ? 0.3 : 1.0};
    for (std::size_t i = 0; i < kCount; ++i) {
      parameter.gradient.set(i, static_cast<T>(number(random)));
      std::visit(
          [&](const auto& which) {
            step<T>(which, update, parameter.gradient.get(i), expected[i]);
          },
          rule);
    }
    const std::size_t first = random() % kCount;
    const std::size_t second = first + random() % (kCount - first);
    parameter.apply(update, second, kCount, set);
    parameter.apply(update, 0, first, set);
    parameter.apply(update, first, second, set);
    for (std::size_t i = 0; i < kCount; ++i) {
      Memory<T> rounded(type, 1);
      rounded.set(0, expected[i].value);
      expected[i].value = rounded.get(0);
      ASSERT_EQ(parameter.value.get(i), expected[i].value)
          << "element " << i << ", step " << count;
    }
  }
}

TEST(UpdateKernels, EqualTheObviousVersionToTheBitHoweverTheyAreCut) {
  std::uint64_t seed = 1;
  for (const InstructionSet set : sets_of_this_cpu())
    for (const DataType type : kFloatingTypes)
      for (const auto& [name, rule] : rules()) {
        SCOPED_TRACE(std::string(name) + ", " + std::string(name_of(type)) +
                     ", " + std::string(name_of(set)) + ", seed " +
                     std::to_string(++seed));
        if (type == DataType::kFloat64)
          compare<double>(type, rule, set, seed);
        else
          compare<float>(type, rule, set, seed);
        if (HasFatalFailure()) return;
      }
}

TEST(UpdateKernels, NeedNoMoreMemoryThanTheRulesState) {
  Parameter<float> parameter(DataType::kFloat32, 100);
  UpdatePiece piece{.parameter = parameter.value.at(0),
                    .gradient = parameter.gradient.at(0),
                    .elements = 100};
  apply_update({.rule = SgdRule{.weight_decay = 0.1}}, piece);
  EXPECT_EQ(state_count(SgdRule{}), 0u);
  EXPECT_EQ(state_count(SgdRule{.momentum = 0.9}), 1u);
  EXPECT_EQ(state_count(AdamRule{}), 2u);
  piece.elements = 0;
  piece.parameter = nullptr;
  piece.gradient = nullptr;
  apply_update({.rule = AdamRule{}}, piece);
}

TEST(UpdateKernels, LetAStepWithoutDecayLeaveInfinityAlone) {
  for (const InstructionSet set : sets_of_this_cpu()) {
    Parameter<float> parameter(DataType::kFloat32, 40);
    for (std::size_t i = 0; i < 40; ++i) parameter.value.set(i, -INFINITY);
    parameter.apply({.rule = SgdRule{.momentum = 0.9}}, 0, 40, set);
    parameter.apply({.rule = AdamRule{}}, 0, 40, set);
    for (std::size_t i = 0; i < 40; ++i)
      EXPECT_EQ(parameter.value.get(i), -INFINITY);
  }
}

template <class T>
void compare_squares(DataType type, std::size_t count,
                     std::mt19937_64& random) {
  std::normal_distribution<double> number;
  Memory<T> memory(type, count);
  double expected = 0;
  for (std::size_t i = 0; i < count; ++i) {
    memory.set(i, static_cast<T>(number(random)));
    expected += static_cast<double>(memory.get(i)) * memory.get(i);
  }
  const double portable =
      sum_of_squares(memory.at(0), count, type, InstructionSet::kPortable);
  EXPECT_NEAR(portable, expected, 1e-12 * expected);
  for (const InstructionSet set : sets_of_this_cpu())
    EXPECT_EQ(sum_of_squares(memory.at(0), count, type, set), portable);
}

TEST(SumOfSquares, IsTheSameOnEveryInstructionSet) {
  std::mt19937_64 random(7);
  for (const DataType type : kFloatingTypes)
    for (const std::size_t count : {0, 1, 15, 16, 17, 511, 512, 513, 5000}) {
      SCOPED_TRACE(std::string(name_of(type)) + " x " + std::to_string(count));
      if (type == DataType::kFloat64)
        compare_squares<double>(type, count, random);
      else
        compare_squares<float>(type, count, random);
    }
}

}  // namespace
}  // namespace lockstep
