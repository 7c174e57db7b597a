#include "src/torch/gradient/gradient_buckets.h"

#include <gtest/gtest.h>

#include "src/comm/group/group_core.h"
#include "src/comm/memory/heap.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/gradient/reducer.h"
#include "src/torch/tensor/heap_allocator.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSide = 128;  // squared, more than kLeastHeapTensor

at::Tensor parameter(double phase) {
  return wave({kSide, kSide}, phase).requires_grad_();
}

std::vector<NamedParameter> named(const std::vector<at::Tensor>& tensors) {
  std::vector<NamedParameter> parameters;
  for (const at::Tensor& tensor : tensors)
    parameters.push_back({"p" + std::to_string(parameters.size()), tensor});
  return parameters;
}

using Loss = std::function<at::Tensor(const std::vector<at::Tensor>&, double)>;

// Two ranks, whose losses differ by a factor, must find the gradient of their
// average, though each is reduced as soon as it arrives.
void expect_averages(const Loss& loss, std::size_t parameters) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    std::vector<at::Tensor> own, alone;
    for (std::size_t i = 0; i < parameters; ++i) {
      own.push_back(parameter(static_cast<double>(i)));
      alone.push_back(parameter(static_cast<double>(i)));
    }
    const auto reducer = Reducer::make(
        named(own), group, {.first_bucket_bytes = 0, .bucket_bytes = 0});
    for (int step = 0; step < 3; ++step) {
      for (at::Tensor& tensor : own) tensor.mutable_grad().reset();
      for (at::Tensor& tensor : alone) tensor.mutable_grad().reset();
      loss(own, group->rank() + 1).backward();
      ((loss(alone, 1) + loss(alone, 2)) / 2).backward();
      for (std::size_t i = 0; i < parameters; ++i)
        EXPECT_LE((own[i].grad() - alone[i].grad()).abs().max().item<double>(),
                  1e-5)
            << "parameter " << i << ", step " << step;
    }
  });
}

TEST(GradientBuckets, LeaveLargeGradientsWhereTheyAreBorn) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor weight = parameter(0);
    const auto reducer = Reducer::make(named({weight}), group);
    const void* born = nullptr;
    weight.register_hook(
        [&](const at::Tensor& gradient) { born = gradient.const_data_ptr(); });
    (weight * (group->rank() + 1.0)).sum().backward();
    EXPECT_EQ(weight.grad().const_data_ptr(), born);
    EXPECT_TRUE((weight.grad() == 1.5).all().item<bool>());
    EXPECT_TRUE(group->core().heap()->offset_of(born, weight.nbytes()));
  });
}

TEST(GradientBuckets, HoldNoSecondCopyOfTheGradients) {
  run_ranks(kBackend, 1, [](const Group& one) {
    const auto heap = one->core().heap();
    const std::size_t before = heap->bytes_in_use();
    allocate_tensors_from(heap);
    const BucketPlan plan = plan_buckets(std::vector<ParameterSize>(
        4, {.elements = static_cast<std::size_t>(kSide * kSide)}));
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(parameter(i));
    GradientBuckets buckets(tensors, plan, *one);
    (tensors[0] * 2 + tensors[1] * 3 + tensors[2] * 4 + tensors[3] * 5)
        .sum()
        .backward();
    for (std::size_t i = 0; i < 4; ++i)
      buckets.take(i, tensors[i], std::to_string(i));
    buckets.let_go();
    const std::size_t bytes = tensors[0].nbytes();
    EXPECT_LT(heap->bytes_in_use() - before, 4 * 2 * bytes + bytes / 2);
    for (at::Tensor& tensor : tensors) tensor.mutable_grad().reset();
    EXPECT_LT(heap->bytes_in_use() - before, 4 * bytes + bytes / 2);
  });
}

TEST(GradientBuckets, CopyGradientsThatAreHalvesOfOneStorage) {
  expect_averages(
      [](const std::vector<at::Tensor>& p, double factor) {
        const at::Tensor both = torch::cat({p[0], p[1]});
        return (both * both * factor).sum();
      },
      2);
}

// The view's gradient has the sum's storage, and is there before that has gone
// on to the other term.
TEST(GradientBuckets, CopyAGradientThatStillFlowsToAnother) {
  expect_averages(
      [](const std::vector<at::Tensor>& p, double factor) {
        const at::Tensor inner = (torch::tanh(p[1]) * factor).view({-1});
        const at::Tensor sum = p[0].view({-1}) + inner;
        return (sum * factor * wave({kSide * kSide}, 5)).sum();
      },
      2);
}

TEST(GradientBuckets, TakeGradientsOfTransposedParametersAsTheyLie) {
  expect_averages(
      [](const std::vector<at::Tensor>& p, double factor) {
        return torch::matmul(p[0].t(), p[1]).tanh().sum() * factor;
      },
      2);
}

TEST(GradientBuckets, FollowAGradientThatIsKeptAndAccumulatedInto) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor weight = parameter(0);
    const auto reducer = Reducer::make(named({weight}), group);
    const auto pass = [&] {
      (weight * (group->rank() + 1.0)).sum().backward();
      return weight.grad().const_data_ptr();
    };
    const void* const first = pass();
    EXPECT_EQ(pass(), first);
    EXPECT_TRUE((weight.grad() == 3).all().item<bool>());
  });
}

TEST(GradientBuckets, WorkWhereTensorsAreNotInTheHeap) {
  run_ranks("gloo", 2, [](const Group& group) {
    const at::Tensor weight = parameter(0);
    const auto reducer = Reducer::make(named({weight}), group);
    (weight * (group->rank() + 1.0)).sum().backward();
    EXPECT_TRUE((weight.grad() == 1.5).all().item<bool>());
  });
}

// Gives gradients other memory, as `p.grad.data = …` does in Python.
void clip_by_set_data(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters)
    parameter.mutable_grad().set_data(parameter.grad().clamp(-0.01, 0.01));
}

// Issue 43. Large gradients are reduced where they lie, small ones in a slot;
// zero_grad(false) keeps the tensors.
TEST(GradientBuckets, TakeGradientsThatWereGivenOtherMemory) {
  for (const std::int64_t side : {std::int64_t{4}, kSide})
    for (const bool as_view : {true, false})
      for (const bool set_to_none : {true, false})
        run_ranks(kBackend, 2, [&](const Group& group) {
          const auto net = [&] {
            torch::nn::Linear layer(side, side);
            fill(*layer, 0);
            return layer;
          };
          torch::nn::Linear own = net(), alone = net();
          DistributedDataParallel model(
              own, {.group = group, .gradient_as_bucket_view = as_view});
          torch::optim::SGD sgd(model.parameters(), 0.1);
          torch::optim::SGD sgd_alone(alone->parameters(), 0.1);
          const auto input = [&](int rank, int step) {
            return wave({2, side}, rank + 3 * step);
          };
          for (int step = 0; step < 4; ++step) {
            sgd.zero_grad(set_to_none);
            model(input(group->rank(), step)).square().sum().backward();
            clip_by_set_data(own->parameters());
            sgd.step();
            sgd_alone.zero_grad(set_to_none);
            for (const int rank : {0, 1})
              (alone(input(rank, step)).square().sum() / 2).backward();
            clip_by_set_data(alone->parameters());
            sgd_alone.step();
            EXPECT_LE(
                largest_difference(own->parameters(), alone->parameters()),
                kTolerance)
                << "side " << side << ", step " << step;
          }
        });
}

// A queue of gradients, one place on: each lies in the slot of another
// parameter when the next pass adds to it.
TEST(GradientBuckets, TakeGradientsThatWereGivenToOtherParameters) {
  const auto loss = [](const std::vector<at::Tensor>& tensors, double factor) {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& tensor : tensors)
      sum = sum + (tensor * (factor *= 10)).sum();
    return sum;
  };
  const auto shift = [](const std::vector<at::Tensor>& tensors) {
    const at::Tensor first = tensors[0].grad();
    for (std::size_t i = 1; i < tensors.size(); ++i)
      tensors[i - 1].mutable_grad() = tensors[i].grad();
    tensors.back().mutable_grad() = first;
  };
  run_ranks(kBackend, 2, [&](const Group& group) {
    std::vector<at::Tensor> own, alone;
    for (auto* list : {&own, &alone})
      for (int i = 0; i < 3; ++i)
        list->push_back(torch::ones({3}).requires_grad_());
    const auto reducer = Reducer::make(named(own), group);
    for (int step = 0; step < 4; ++step) {
      loss(own, group->rank() + 1).backward();
      loss(alone, 1.5).backward();
      for (std::size_t i = 0; i < own.size(); ++i)
        EXPECT_TRUE(own[i].grad().equal(alone[i].grad())) << i << ' ' << step;
      shift(own);
      shift(alone);
    }
  });
}

TEST(GradientBuckets, TakeGradientsThatWereReshapedInPlace) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedDataParallel model(Net(), small_buckets(group));
    backward(model, *group, 0);
    for (const at::Tensor& gradient : gradients_of(*model)) gradient.t_();
    model.zero_grad();
    backward(model, *group, 1);
    EXPECT_LE(largest_difference(gradients_of(*model),
                                 gradients_of_one_process(2, 1)),
              kTolerance);
  });
}

}  // namespace
}  // namespace lockstep
