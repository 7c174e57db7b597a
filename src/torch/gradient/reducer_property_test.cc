// Random parameters in random graphs, against what plain autograd says of each
// rank's loss. Others in each run: LOCKSTEP_TEST_SEED gives those of an earlier
// one again.
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <random>

#include "src/base/testing/test_seed.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/gradient/reducer.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using Random = std::mt19937_64;
using Tensors = std::vector<at::Tensor>;

constexpr int kStepsOfNet = 4;

std::size_t below(Random& random, std::size_t end) {
  return static_cast<std::size_t>(random() % end);
}

// How large they get. One of ten million elements is among the large ones.
enum class Sizes { kMixed, kWithOneLarge };

// Neighbours of one shape are frequent, so that gradients can be shared.
Tensors random_parameters(Random& random, Sizes how_large) {
  constexpr std::int64_t kLarge = 10'000'000;
  constexpr std::int64_t kSampleRows[] = {0, 1, 3, 40, 3000, 100'000};
  Tensors parameters;
  std::vector<std::int64_t> sizes{4};
  at::ScalarType type = at::kFloat;
  const std::size_t count = 1 + below(random, 12);
  if (how_large == Sizes::kWithOneLarge)
    parameters.push_back(wave({kLarge}, 0.5).requires_grad_());
  for (std::size_t i = 0; i < count; ++i) {
    if (below(random, 3) > 0) {
      sizes = {kSampleRows[below(random, std::size(kSampleRows))]};
      if (below(random, 2) == 0)
        sizes.push_back(static_cast<std::int64_t>(1 + below(random, 3)));
      type = below(random, 5) == 0 ? at::kDouble : at::kFloat;
    }
    at::Tensor parameter = wave(sizes, static_cast<double>(i)).to(type);
    if (parameter.dim() == 2 && below(random, 4) == 0)
      parameter = parameter.t().contiguous().t();  // dense, not row-major
    parameters.push_back(parameter.requires_grad_());
  }
  return parameters;
}

at::Tensor weighted(const at::Tensor& x, Random& random) {
  const auto phase = static_cast<double>(below(random, 100));
  return (x * wave(x.sizes(), phase).to(x.scalar_type())).sum();
}

// One term of a loss, in which the gradients of `a` and `b` may be one tensor,
// parts of one tensor, expanded, or on their way to others.
at::Tensor random_term(const at::Tensor& a, const at::Tensor& b,
                       Random& random) {
  const bool alike =
      a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
  switch (below(random, 7)) {
    case 0:
      return a.sum() * 3;
    case 1:
      return a.dim() == 2 ? weighted(a.t(), random) : weighted(a, random);
    case 2:
      if (a.scalar_type() != b.scalar_type()) break;
      return weighted(torch::cat({a.flatten(), b.flatten()}), random);
    case 3:
      if (!alike) break;
      return weighted(a + b, random);
    case 4: {
      if (!alike) break;
      const at::Tensor sum = a + torch::tanh(b);
      return weighted(sum, random) + sum.sum();
    }
    case 5:
      return weighted(a, random) + a.sum();  // twice
    default:
      break;
  }
  return weighted(a, random);
}

// Which parameters a pass uses.
enum class Uses { kSome, kAll };

// The same for the same seed.
at::Tensor random_loss(const Tensors& parameters, Uses uses,
                       std::uint64_t seed) {
  Random random(seed);
  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& other = parameters[below(random, parameters.size())];
    if (below(random, 3) == 0 && uses == Uses::kSome) continue;
    loss = loss + random_term(parameter, other, random).to(at::kDouble);
  }
  // A pass must have some gradient to be one.
  return loss + parameters[0].sum().to(at::kDouble);
}

// Adds a rank's gradients of the losses with these seeds to `sum`, in which
// what nothing has used stays undefined.
void add_gradients(const Tensors& parameters, Uses uses,
                   const std::vector<std::uint64_t>& seeds, Tensors& sum) {
  Tensors copies;
  for (const at::Tensor& parameter : parameters)
    copies.push_back(parameter.detach().clone().requires_grad_());
  for (const std::uint64_t seed : seeds)
    random_loss(copies, uses, seed).backward();
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const at::Tensor& gradient = copies[i].grad();
    if (!gradient.defined()) continue;
    sum[i] = sum[i].defined() ? sum[i] + gradient : gradient.clone();
  }
}

struct Kind {
  Sizes sizes = Sizes::kMixed;
  Uses uses = Uses::kSome;
};

struct Plan {
  Kind kind{};
  int ranks = 2;
  ReducerOptions options{};
  Tensors parameters{};
  std::uint64_t seed = 0;
  std::vector<Tensors> averages{};  // by step

  // The losses of one step: all but the last within no_sync().
  std::vector<std::uint64_t> losses(int step, int rank) const {
    const auto unique = [&](std::uint64_t part) {
      // With a static graph every step is the first.
      const int counted = options.static_graph ? 0 : step;
      return seed * 1000 + static_cast<std::uint64_t>(counted) * 100 +
             static_cast<std::uint64_t>(rank) * 10 + part;
    };
    if ((seed + static_cast<std::uint64_t>(step)) % 3 == 0 &&
        !options.static_graph)
      return {unique(0), unique(1), unique(2)};
    return {unique(2)};
  }
};

// What the ranks' gradients of a step average to.
Tensors average_of(const Plan& plan, int step) {
  Tensors average(plan.parameters.size());
  for (int rank = 0; rank < plan.ranks; ++rank)
    add_gradients(plan.parameters, plan.kind.uses, plan.losses(step, rank),
                  average);
  for (at::Tensor& gradient : average)
    if (gradient.defined()) gradient /= plan.ranks;
  return average;
}

Plan random_plan(const Kind& kind, std::uint64_t seed) {
  Random random(seed);
  Plan plan{.kind = kind,
            .ranks = kind.sizes == Sizes::kWithOneLarge
                         ? 2
                         : static_cast<int>(2 + below(random, 3)),
            .seed = seed};
  plan.options = {.first_bucket_bytes = below(random, 5000),
                  .bucket_bytes = below(random, 1'000'000),
                  .find_unused_parameters = kind.uses == Uses::kSome,
                  .static_graph = below(random, 3) == 0,
                  .gradient_as_bucket_view = below(random, 3) > 0};
  plan.parameters = random_parameters(random, kind.sizes);
  for (int step = 0; step < kStepsOfNet; ++step)
    plan.averages.push_back(average_of(plan, step));
  return plan;
}

void check_step(const Plan& plan, const Tensors& parameters, int step,
                Tensors& expected) {
  const Tensors& averages = plan.averages[static_cast<std::size_t>(step)];
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    SCOPED_TRACE(c10::str("parameter ", i, " of ", parameters.size(), ", ",
                          parameters[i].scalar_type(), " ",
                          parameters[i].sizes()));
    if (averages[i].defined())
      expected[i] =
          expected[i].defined() ? expected[i] + averages[i] : averages[i];
    const at::Tensor& gradient = parameters[i].grad();
    ASSERT_EQ(gradient.defined(), expected[i].defined());
    if (!gradient.defined()) continue;
    ASSERT_EQ(gradient.sizes(), expected[i].sizes());
    if (gradient.numel() == 0) continue;
    EXPECT_LE((gradient - expected[i]).abs().max().item<double>(), 2e-5);
  }
}

void run_rank(const Plan& plan, const Group& group) {
  SCOPED_TRACE(c10::str("seed ", plan.seed, ", ", plan.ranks, " ranks, static ",
                        plan.options.static_graph, ", bucket views ",
                        plan.options.gradient_as_bucket_view, ", buckets of ",
                        plan.options.first_bucket_bytes, " and ",
                        plan.options.bucket_bytes, " bytes"));
  Tensors parameters;
  std::vector<NamedParameter> named;
  for (const at::Tensor& parameter : plan.parameters) {
    parameters.push_back(parameter.detach().clone().requires_grad_());
    named.push_back({std::to_string(named.size()), parameters.back()});
  }
  const auto reducer = Reducer::make(named, group, plan.options);
  Tensors expected(parameters.size());
  for (int step = 0; step < kStepsOfNet && !testing::Test::HasFailure();
       ++step) {
    if (step % 2 == 0)  // step 1 and 3 accumulate
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].mutable_grad().reset();
        expected[i].reset();
      }
    const auto losses = plan.losses(step, group->rank());
    for (std::size_t i = 0; i + 1 < losses.size(); ++i) {
      const NoSync guard(reducer->policy());
      random_loss(parameters, plan.kind.uses, losses[i]).backward();
    }
    random_loss(parameters, plan.kind.uses, losses.back()).backward();
    SCOPED_TRACE("step " + std::to_string(step));
    check_step(plan, parameters, step, expected);
  }
}

void check_random_graphs(const Kind& kind, std::uint64_t count) {
  const std::uint64_t first = test_seed();
  for (std::uint64_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    const Plan plan = random_plan(kind, first + i);
    run_ranks(kBackend, plan.ranks,
              [&](const Group& group) { run_rank(plan, group); });
  }
}

TEST(Reducer, AveragesWhatPlainAutogradComputesInRandomGraphs) {
  check_random_graphs({.uses = Uses::kSome}, 15);
}

TEST(Reducer, AveragesRandomGraphsThatUseAllParameters) {
  check_random_graphs({.uses = Uses::kAll}, 15);
}

TEST(Reducer, AveragesRandomGraphsOfTenMillionElements) {
  check_random_graphs({.sizes = Sizes::kWithOneLarge, .uses = Uses::kSome}, 1);
  check_random_graphs({.sizes = Sizes::kWithOneLarge, .uses = Uses::kAll}, 1);
}

}  // namespace
}  // namespace lockstep
