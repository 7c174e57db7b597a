// Tests of tensors whose memory differs from their elements: code that reads or
// writes memory must give the same result as for a plain tensor with the same
// elements.
#include "src/torch/tensor/tensor_memory.h"

#include <ATen/ops/_efficientzerotensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/logical_shards.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/tensor_collectives.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/compare/fingerprint.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/gradient/reducer.h"
#include "src/torch/testing/formula_parameters.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using torch::optim::SGDOptions;
using Random = std::mt19937_64;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kLargeSide = 128;  // squared, more than kLeastHeapTensor

at::Tensor plain_values(Random& random, bool large) {
  static const std::vector<std::vector<std::int64_t>> kShapes{
      {}, {1}, {1, 1}, {3}, {4, 3}, {2, 3, 4}, {0}};
  const auto phase = static_cast<double>(random() % 100);
  if (large) return wave({kLargeSide, kLargeSide}, phase);
  return wave(kShapes[random() % kShapes.size()], phase);
}

// A tensor of the same elements whose memory is harder to read: one step of a
// view of views.
at::Tensor disguised(const at::Tensor& values, Random& random) {
  switch (random() % 7) {
    case 0:  // negated when read
      return (-values)._neg_view();
    case 1:  // the real part of what is conjugated when read
      return at::real(at::complex(values, values).conj());
    case 2:  // negated, and every second number of memory
      return at::imag(at::complex(values, -values).conj());
    case 3:
      if (values.dim() < 2) break;
      return values.transpose(0, 1).contiguous().transpose(0, 1);
    case 4: {  // in the middle of a larger block
      const at::Tensor block = at::full({values.numel() + 5}, 7.0);
      const at::Tensor part =
          block.narrow(0, 3, values.numel()).view(values.sizes());
      return part.copy_(values);
    }
    case 5: {  // of columns that lie apart
      auto sizes = values.sizes().vec();
      sizes.push_back(2);
      return at::full(sizes, 7.0).select(-1, 1).copy_(values);
    }
    case 6: {  // one number for all
      if (values.numel() == 0) break;
      const at::Tensor first = values.flatten()[0].clone();
      return first.expand(values.sizes());
    }
    default:
      break;
  }
  return values.clone();
}

at::Tensor much_disguised(const at::Tensor& values, Random& random) {
  at::Tensor tensor = values;
  for (unsigned steps = 1 + random() % 3; steps > 0; --steps)
    tensor = disguised(tensor, random);
  return tensor;
}

// Some derivatives return such zeros.
at::Tensor zeros_without_memory(const at::Tensor& values) {
  return at::_efficientzerotensor(values.sizes(), values.options());
}

struct Sample {
  at::Tensor hard, plain;  // of the same elements
};

Sample sample(Random& random, bool large) {
  const at::Tensor values = plain_values(random, large);
  const at::Tensor hard = random() % 16 == 0 ? zeros_without_memory(values)
                                             : much_disguised(values, random);
  return {hard, at::zeros(hard.sizes()).copy_(hard)};
}

template <class Body>
void for_samples(int count, const Body& body) {
  const std::uint64_t seed = std::random_device()();
  Random random(seed);
  for (int i = 0; i < count; ++i) {
    const Sample made = sample(random, i % 4 == 0);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", sample " +
                 std::to_string(i));
    ASSERT_TRUE(made.plain.equal(made.hard));
    body(made);
  }
}

// A parameter of zeros with this gradient.
at::Tensor parameter_of(const at::Tensor& gradient) {
  at::Tensor parameter =
      at::zeros(gradient.sizes(), at::kFloat).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

TEST(TensorMemory, IsResolvedOnlyWhereItHasTo) {
  const at::Tensor plain = wave({3, 4}, 0);
  EXPECT_TRUE(resolved(plain).is_same(plain));
  for_samples(100, [](const Sample& made) {
    const at::Tensor own = resolved(made.hard);
    EXPECT_TRUE(holds_its_elements(own));
    EXPECT_TRUE(own.equal(made.plain));
    EXPECT_EQ(own.is_same(made.hard), holds_its_elements(made.hard));
  });
}

TEST(TensorMemory, TakesTheElementsOfAnotherAlsoIfExpanded) {
  const at::Tensor expanded =
      at::zeros({2, 1, 3}).expand({2, 4, 3}).transpose(0, 1);
  const at::Tensor elements =
      wave({2, 1, 3}, 0).expand({2, 4, 3}).transpose(0, 1).contiguous();
  copy_elements(elements, expanded);
  EXPECT_TRUE(expanded.equal(elements));
  EXPECT_EQ(without_repeats(expanded).numel(), 6);
  const at::Tensor plain = at::zeros({4, 2, 3}, at::kDouble);
  copy_elements(elements, plain);
  EXPECT_TRUE(plain.to(at::kFloat).equal(elements));
}

TEST(TensorMemory, IsRefusedWhereOthersAreToReadItAsItIs) {
  for (const at::Tensor& tensor :
       {wave({3}, 0)._neg_view(), at::_efficientzerotensor({3}, at::kFloat)})
    EXPECT_THAT(message_of([&] { view(tensor); }),
                HasSubstr("does not hold its elements"));
}

TEST(HardGradients, MakeTheStepsOfPlainOnes) {
  for_samples(100, [](const Sample& made) {
    const at::Tensor ours = parameter_of(made.hard);
    const at::Tensor expected = parameter_of(made.plain);
    FusedSGD(Tensors{ours}, SGDOptions(0.5)).step();
    FusedSGD(Tensors{expected}, SGDOptions(0.5)).step();
    EXPECT_TRUE(ours.equal(expected));
  });
}

TEST(HardGradients, HaveTheNormOfPlainOnesAndAreClippedAsThose) {
  for_samples(100, [](const Sample& made) {
    const at::Tensor ours = parameter_of(made.hard.clone());
    const at::Tensor hard = parameter_of(made.hard);
    const at::Tensor expected = parameter_of(made.plain.clone());
    EXPECT_DOUBLE_EQ(grad_norm({hard}), grad_norm({expected}));
    if (made.hard.is_neg()) {
      clip_grad_norm({hard}, 0.25);
      clip_grad_norm({expected}, 0.25);
      EXPECT_TRUE(hard.grad().equal(expected.grad()));
    }
  });
}

TEST(HardGradients, AreUnscaledAsPlainOnes) {
  run_ranks(kBackend, 1, [](const Group& group) {
    for_samples(100, [&](const Sample& made) {
      if (!made.hard.is_neg()) return;
      const at::Tensor ours = parameter_of(made.hard);
      const at::Tensor expected = parameter_of(made.plain.clone() / 65536);
      torch::optim::SGD optimizer({ours}, SGDOptions(0.5));
      GradientScaler scaler({.group = group});
      scaler.unscale_(optimizer);
      EXPECT_TRUE(ours.grad().equal(expected.grad()));
    });
  });
}

// Replaces the gradient of a parameter by the hard one, which autograd then
// takes unchanged.
at::Tensor backward_with(const at::Tensor& parameter,
                         const std::function<at::Tensor()>& gradient) {
  const auto hook = parameter.register_hook(
      [&](const at::Tensor& /*ones*/) { return gradient(); });
  parameter.sum().backward();
  parameter.remove_hook(hook);
  return parameter.grad();
}

TEST(HardGradients, AreReducedAsPlainOnes) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const bool as_view : {true, false})
    run_ranks(kBackend, 2, [&](const Group& group) {
      for (int i = 0; i < 60; ++i) {
        Random random(seed + static_cast<std::uint64_t>(i));
        const bool large = i % 4 == 0;
        const at::Tensor values = plain_values(random, large);
        const at::Tensor parameter = at::zeros(values.sizes()).requires_grad_();
        const auto reducer = Reducer::make(
            {{"p", parameter}}, group, {.gradient_as_bucket_view = as_view});
        // Each rank disguises differently; zeros and repeated numbers have ways
        // of their own.
        Random own(seed + static_cast<std::uint64_t>(1000 * i) +
                   static_cast<std::uint64_t>(group->rank()));
        at::Tensor hard;
        do {
          hard = much_disguised(values * (group->rank() + 1.0), own);
        } while (!hard.equal(values * (group->rank() + 1.0)));
        const at::Tensor gradient =
            backward_with(parameter, [&] { return std::move(hard); });
        EXPECT_TRUE(at::allclose(gradient, values * 1.5))
            << "sample " << i << ", as view " << as_view;
      }
    });
}

// PyTorch's tensor of a learnable phase: the gradient of its scalar is negated
// when it is read.
struct Phase : torch::nn::Module {
  explicit Phase(at::IntArrayRef shape) {
    angle = register_parameter("angle", torch::full(shape, 2.0));
    other = register_parameter("other", torch::ones({3}));
  }
  at::Tensor forward() {
    const auto z = at::complex(torch::zeros_like(angle), angle);
    const auto w =
        at::complex(torch::ones_like(angle), torch::full_like(angle, 2.0));
    return at::real(z.conj() * w).sum() + other.sum();
  }
  at::Tensor angle, other;
};

TEST(HardGradients, OfALearnablePhaseHaveTheirSign) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {1}, {kLargeSide, kLargeSide}}) {
      auto model = DistributedDataParallel(Phase(shape), {.group = group});
      model.forward().backward();
      EXPECT_TRUE((model->angle.grad() == 2).all().item<bool>());
      FusedSGD(model.parameters(), SGDOptions(0.1)).step();
      EXPECT_TRUE(at::allclose(model->angle, at::full(shape, 1.8)));
    }
  });
}

TEST(HardGradients, AreAveragedByAShardedOptimizerAndByLogicalShards) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {1}, {kLargeSide, kLargeSide}}) {
      auto model = DistributedDataParallel(
          Phase(shape), {.group = group, .average_gradients = false});
      ZeroRedundancyOptimizer optimizer(
          model.parameters(), SGDOptions(0.1),
          {.group = group, .averages_gradients = true});
      model.forward().backward();
      optimizer.step();
      EXPECT_TRUE(at::allclose(model->angle, at::full(shape, 1.8)));

      const auto net = std::make_shared<Phase>(shape);
      LogicalShards shards(net, {.group = group, .count = 4});
      shards.run([&](const LogicalShard&) { net->forward().backward(); });
      EXPECT_TRUE((net->angle.grad() == 2).all().item<bool>());
    }
  });
}

TEST(HardTensors, TravelAsPlainOnes) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  run_ranks(kBackend, 2, [&](const Group& group) {
    Random random(seed);  // the same on both ranks
    for (int i = 0; i < 60; ++i) {
      const Sample made = sample(random, i % 4 == 0);
      const Tensors parts{at::empty_like(made.plain),
                          at::empty_like(made.plain)};
      all_gather(*group, parts, made.hard).wait();
      for (const at::Tensor& part : parts)
        EXPECT_TRUE(part.equal(made.plain)) << i;
      const at::Tensor result = at::zeros(made.plain.sizes());
      broadcast(*group, group->rank() == 0 ? made.plain : result._neg_view(), 0)
          .wait();
      if (group->rank() == 0) continue;
      EXPECT_TRUE((-result).equal(made.plain)) << i;
    }
  });
}

TEST(HardTensors, AreBroadcastWithAModuleAndHaveThePlainOnesFingerprint) {
  for_samples(100, [](const Sample& made) {
    EXPECT_EQ(fingerprint_of(made.hard), fingerprint_of(made.plain));
  });
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor own = wave({4, 3}, group->rank());
    const at::Tensor hard = (-own)._neg_view();
    const at::Tensor complex = at::complex(own, own + 1).conj();
    broadcast_tensors(*group, {hard, complex}, 0);
    const at::Tensor first = wave({4, 3}, 0);
    EXPECT_TRUE(hard.equal(first));
    EXPECT_TRUE(complex.resolve_conj().equal(
        at::complex(first, -(first + 1)).resolve_conj()));
  });
}

TEST(HardParameters, AreRefusedByName) {
  const at::Tensor negated = wave({3}, 0)._neg_view().requires_grad_();
  EXPECT_THAT(message_of([&] { FusedSGD(Tensors{negated}, SGDOptions(0.5)); }),
              HasSubstr("parameter 0 of group 0"));
}

}  // namespace
}  // namespace lockstep
