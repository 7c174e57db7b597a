// Tests of tensors on GPUs, on a fake of CUDA and NCCL that delays all work and
// detects missing ordering: see src/torch/testing/fake_cuda.h.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/gradient/gradient_buckets.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A stream of its own, current within the scope.
struct OwnStream {
  explicit OwnStream(at::Device device)
      : stream(c10::impl::VirtualGuardImpl(at::kCUDA).getNewStream(device)),
        guard(stream) {}
  const c10::Stream stream;
  const c10::StreamGuard guard;
};

using Cuda = CudaRanks;

TEST_F(Cuda, ReducesTensorsInTheOrderOfTheCurrentStream) {
  run(2, [](const Group& group) {
    const OwnStream own(gpu_of(*group));
    const at::Tensor sum =
        at::full({5}, group->rank() + 1.0F, gpu_of(*group)).add_(1);
    all_reduce(*group, sum).wait();
    EXPECT_TRUE(sum.mul(2).cpu().equal(at::full({5}, 10.0F)));
  });
}

TEST_F(Cuda, BringsResultsOfStridedTensorsBackOnTheCurrentStream) {
  run(2, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    const at::Tensor matrix = at::full({3, 4}, group->rank() + 1.0F, device);
    const at::Tensor columns = matrix.t();
    const Work work = all_reduce(*group, columns);
    work.wait();
    EXPECT_TRUE(columns.cpu().equal(at::full({4, 3}, 3.0F)));
    const Work again = all_reduce(*group, columns);
    again.synchronize();
    EXPECT_TRUE(matrix.cpu().equal(at::full({3, 4}, 6.0F)));
  });
}

TEST_F(Cuda, BringsResultsBackOnWhicheverStreamAwaitsThem) {
  run(2, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::Stream main = guard.getStream(device);
    const at::Tensor matrix = at::full({3, 4}, group->rank() + 1.0F, device);
    Work work;
    {
      const OwnStream own(device);
      c10::Event made(at::kCUDA);
      made.record(main);
      made.block(own.stream);
      work = all_reduce(*group, matrix.t());
    }
    work.wait();
    EXPECT_TRUE(matrix.cpu().equal(at::full({3, 4}, 3.0F)));
    {
      const OwnStream own(device);
      work.wait();  // once more, for another stream
      EXPECT_TRUE(matrix.cpu().equal(at::full({3, 4}, 3.0F)));
      matrix.record_stream(own.stream);
    }
    work.synchronize();
  });
}

TEST_F(Cuda, KeepsMemoryOfWorksThatNobodyAwaitsUntilTheyAreDone) {
  run(2, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    for (int i = 0; i < 20; ++i)
      std::ignore = all_reduce(*group, at::ones({3, 4}, device).t());
    const at::Tensor last = at::ones({2}, device);
    all_reduce(*group, last).synchronize();
    all_reduce(*group, last).synchronize();  // finds the other operations done
  });
}

TEST_F(Cuda, HoldsUpTheStreamThatIsCurrentWhereAWorkIsAwaited) {
  run(2, [](const Group& group) {
    const at::Tensor sum = at::full({5}, group->rank() + 1.0F, gpu_of(*group));
    Work work;
    {
      const OwnStream own(gpu_of(*group));
      c10::Event made(at::kCUDA);
      made.record(c10::impl::VirtualGuardImpl(at::kCUDA).getDefaultStream(
          gpu_of(*group)));
      made.block(own.stream);
      work = all_reduce(*group, sum);
    }
    work.wait();
    EXPECT_TRUE(sum.cpu().equal(at::full({5}, 3.0F)));
  });
}

TEST_F(Cuda, RefusesTensorsOfOneOperationOnTwoDevices) {
  run(1, [](const Group& group) {
    const std::vector<at::Tensor> tensors{at::ones({2}, gpu_of(*group)),
                                          at::ones({2})};
    EXPECT_THAT(message_of([&] {
                  std::ignore = all_reduce_coalesced(*group, tensors);
                }),
                AllOf(HasSubstr("must be on one device"), HasSubstr("move")));
  });
}

// A rank's tensors after every collective in turn; sums are exact.
std::vector<at::Tensor> after_all_collectives(ProcessGroup& group,
                                              at::Device device,
                                              at::ScalarType type) {
  const int ranks = group.size();
  const auto made = [&](std::int64_t length, int add) {
    return at::arange(length, at::kLong)
        .add(group.rank() + add)
        .remainder(5)
        .to(type)
        .to(device);
  };
  const at::Tensor sum = made(7, 0), copied = made(7, 1), at_root = made(7, 2),
                   all = made(3L * ranks, 0), part = made(3, 0),
                   swapped = made(3L * ranks, 0), got = made(4, 0);
  const auto pieces = [&](int root) {
    return group.rank() == root ? at::chunk(all, ranks)
                                : std::vector<at::Tensor>();
  };
  all_reduce(group, sum).wait();
  broadcast(group, copied, ranks - 1).wait();
  reduce(group, at_root, 0, ReduceOp::kMax).wait();
  all_gather_into_tensor(group, all, made(3, 3)).wait();
  reduce_scatter_tensor(group, part, made(3L * ranks, 4), ReduceOp::kMin)
      .wait();
  all_to_all_single(group, swapped, made(3L * ranks, 5)).wait();
  gather(group, part.add(1), pieces(0), 0).wait();
  scatter(group, part, pieces(0), 0).wait();
  const int before = (group.rank() + ranks - 1) % ranks;
  const Work received = irecv(group, got, before);
  isend(group, made(4, 6), (group.rank() + 1) % ranks).wait();
  received.wait();
  std::vector<at::Tensor> after{sum, copied, all, part, swapped, got};
  if (group.rank() == 0) after.push_back(at_root);
  return after;
}

TEST_F(Cuda, CarriesOutEveryCollectiveAsOnTheCpu) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
        at::kChar, at::kByte})
    run(2, [&](const Group& group) {
      const auto expected = after_all_collectives(*group, at::kCPU, type);
      const auto found =
          on_cpu(after_all_collectives(*group, gpu_of(*group), type));
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(found[i].equal(expected[i])) << type << ", " << i;
    });
}

// DistributedDataParallel.

struct CudaWorld : Cuda, ::testing::WithParamInterface<int> {};

std::shared_ptr<Net> net_on(at::Device device, double phase = 0) {
  auto net = std::make_shared<Net>();
  fill(*net, phase);
  net->to(device);
  return net;
}

TEST_P(CudaWorld, LearnWhatOneProcessLearnsOnTheCpu) {
  const int ranks = GetParam();
  Net alone;
  torch::optim::SGD optimizer_of_one(
      alone.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(
      alone, optimizer_of_one,
      [&](int step) { return share_of_batch(step, 0, 1, ranks); }, 4);
  run(ranks, [&](const Group& group) {
    const at::Device device = gpu_of(*group);
    auto model = DistributedDataParallel(net_on(device, group->rank()),
                                         small_buckets(group));
    torch::optim::SGD optimizer(model.parameters(),
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    train(
        model, optimizer,
        [&](int step) { return share_on(device, *group, step); }, 4);
    EXPECT_LE(
        largest_difference(on_cpu(model.parameters()), alone.parameters()),
        kTolerance);
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, CudaWorld, ::testing::Values(1, 2, 3, 4));

// Its layers' forward passes, and so their backward passes, run on separate
// streams.
struct NetOnStreams : Net {
  at::Tensor forward(const at::Tensor& input) {
    const at::Device device = input.device();
    const at::Tensor hidden = aside(device, [&] { return first(input); });
    const at::Tensor more =
        aside(device, [&] { return second(torch::tanh(hidden)); });
    return third(torch::tanh(more));
  }

  // Runs after the current stream's present work, and before its later work.
  template <class Body>
  at::Tensor aside(at::Device device, const Body& body) {
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::Stream main = guard.getStream(device);
    const OwnStream own(device);
    c10::Event ready(at::kCUDA), done(at::kCUDA);
    ready.record(main);
    ready.block(own.stream);
    const at::Tensor result = body();
    done.record(own.stream);
    done.block(main);
    guard.recordDataPtrOnStream(result.storage().data_ptr(), main);
    return result;
  }
};

TEST_F(Cuda, AveragesGradientsThatComeFromSeveralStreams) {
  const auto expected = gradients_of_one_process(2);
  for (const std::size_t bucket_bytes : {std::size_t{1} << 20, std::size_t{0}})
    run(2, [&](const Group& group) {
      const at::Device device = gpu_of(*group);
      auto net = std::make_shared<NetOnStreams>();
      net->to(device);
      auto model =
          DistributedDataParallel(net, {.group = group,
                                        .first_bucket_bytes = bucket_bytes,
                                        .bucket_bytes = bucket_bytes});
      const Share share = share_on(device, *group, 0);
      loss_of(model.forward(share.input), share.target).backward();
      EXPECT_LE(largest_difference(on_cpu(gradients_of(*net)), expected),
                kTolerance);
    });
}

TEST_F(Cuda, GradientsAreViewsOfTheirBucketsFromPassToPass) {
  run(2, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    auto model = DistributedDataParallel(net_on(device), {.group = group});
    const auto pass = [&](int step) {
      const Share share = share_on(device, *group, step);
      loss_of(model.forward(share.input), share.target).backward();
    };
    const auto addresses = [&] {
      std::vector<const void*> places;
      for (const at::Tensor& gradient : gradients_of(*model.module()))
        places.push_back(gradient.const_data_ptr());
      return places;
    };
    pass(0);
    pass(1);
    const auto before = addresses();
    model.module()->zero_grad(/*set_to_none=*/true);
    pass(2);
    EXPECT_EQ(addresses(), before);
    EXPECT_TRUE(
        gradients_of(*model.module())
            .front()
            .storage()
            .is_alias_of(gradients_of(*model.module()).back().storage()));
  });
}

// The third layer is unused.
struct NetOfTwo : Net {
  at::Tensor forward(const at::Tensor& input) {
    return torch::tanh(second(torch::tanh(first(input))));
  }
};

TEST_F(Cuda, NamesTheParametersThatGotNoGradient) {
  run(2, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    auto module = std::make_shared<NetOfTwo>();
    module->to(device);
    auto model = DistributedDataParallel(module, {.group = group});
    const Share share = share_on(device, *group, 0);
    EXPECT_THAT(
        message_of([&] { model.forward(share.input).sum().backward(); }),
        AllOf(HasSubstr("third.weight"), HasSubstr("find_unused_parameters")));
  });
}

TEST_F(Cuda, LeavesUnusedParametersAloneWhereAsked) {
  run(2, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    auto module = std::make_shared<NetOfTwo>();
    module->to(device);
    auto options = small_buckets(group);
    options.find_unused_parameters = true;
    auto model = DistributedDataParallel(module, options);
    for (int step = 0; step < 3; ++step)
      model.forward(share_on(device, *group, step).input).sum().backward();
    EXPECT_TRUE(module->first->weight.grad().defined());
    EXPECT_FALSE(module->third->weight.grad().defined());
  });
}

TEST_F(Cuda, AllocatesNothingOnADeviceThatIsNotARanksOwn) {
  if (!is_fake()) GTEST_SKIP() << "only the fake tells";
  run_gpu_ranks(gpu_.table(), 2, [&](const Group& group) {
    // Device 0 stays current.
    const at::Device device(at::kCUDA,
                            static_cast<at::DeviceIndex>(group->rank() + 1));
    auto model = DistributedDataParallel(net_on(device), {.group = group});
    const Share share = share_on(device, *group, 0);
    loss_of(model.forward(share.input), share.target).backward();
  });
  gpu_.hear_from_all_threads();
  EXPECT_EQ(cuda_->allocated_on(0), 0);
  EXPECT_GT(cuda_->allocated_on(1), 0);
}

TEST_F(Cuda, ReducesInMemoryThatLibTorchKeptOfTensorsThatHaveEnded) {
  if (!is_fake()) GTEST_SKIP() << "a real device has enough";
  run(1, [&](const Group& group) {
    const at::Device device = gpu_of(*group);
    const std::vector<at::Tensor> parameters{at::zeros({8}, device)};
    const BucketPlan plan = plan_buckets(std::vector<ParameterSize>{
        {.elements = 8, .device = {DeviceKind::kCuda, device.index()}}});
    const auto make_buckets = [&] {
      const GradientBuckets buckets(parameters, plan, *group);
    };
    make_buckets();
    at::zeros({8}, device).reset();
    gpu_.set_memory(FakeGpu::Memory::kNone);
    make_buckets();
    gpu_.set_memory(FakeGpu::Memory::kNone);
    EXPECT_THAT(message_of(make_buckets), HasSubstr("GPU 0 has no room for"));
    gpu_.set_memory(FakeGpu::Memory::kEnough);
  });
}

TEST_F(Cuda, EveryRankHearsOfOneThatLeavesItsPass) {
  run(2, [](const Group& group) {
    const at::Device device = gpu_of(*group);
    auto model = DistributedDataParallel(net_on(device), small_buckets(group));
    const Share share = share_on(device, *group, 0);
    at::Tensor output = model.forward(share.input);
    if (group->rank() == 1)
      output.register_hook([](const at::Tensor&) -> at::Tensor {
        throw InvalidArgument("planted");
      });
    const std::string message =
        message_of([&] { loss_of(output, share.target).backward(); });
    if (group->rank() == 1)
      EXPECT_THAT(message, HasSubstr("planted"));
    else
      EXPECT_THAT(message, HasSubstr("rank 1"));
  });
}

}  // namespace
}  // namespace lockstep
