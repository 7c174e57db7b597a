#include "src/torch/optim/tree_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/torch/logical_shards.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/formula_parameters.h"

namespace lockstep {
namespace {

using testing::Contains;
using Tensors = std::vector<at::Tensor>;

constexpr int kTreeShards = 4;

// The expected sum for any number of ranks, by recursion.
at::Tensor tree_of(const Tensors& leaves, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return leaves[begin];
  const std::size_t middle = begin + (end - begin) / 2;
  return tree_of(leaves, begin, middle) + tree_of(leaves, middle, end);
}

// Numbers whose sum depends on the order.
at::Tensor leaf(int number) { return wave({37}, number).exp() * 1e3; }

TEST(TreeSum, AddsInABalancedTreeWhateverTheOrderOfMagnitudes) {
  Tensors leaves;
  for (int i = 0; i < 8; ++i) leaves.push_back(leaf(i));
  TreeSum sum;
  at::Tensor row = at::zeros({37});
  for (const at::Tensor& one : leaves) {
    sum.add({one.clone()});
    row = row + one;
  }
  const at::Tensor tree = tree_of(leaves, 0, 8);
  EXPECT_TRUE(sum.take().front().equal(tree));
  EXPECT_FALSE(row.equal(tree));
}

class TreeReductionOnCuda : public CudaRanks {
 protected:
  // The kinds of the operations of this run.
  std::vector<OperationKind> kinds(const ProcessGroup& group) const {
    std::vector<OperationKind> found;
    for (const OperationRecord& one : operations(group))
      if (one.label == "sums over logical shards")
        found.push_back(static_cast<OperationKind>(one.signature.kind));
    return found;
  }
};

TEST_F(TreeReductionOnCuda, AddsRanksInTheTreeAndNotInNcclsOrder) {
  for (const int ranks : {1, 2, 4})
    run(ranks, [&](const Group& group) {
      const at::Device device = gpu_of(*group);
      const auto of_rank = [](int rank) {
        return Tensors{
            leaf(rank),
            wave({2, 3, 4, 5}, rank).contiguous(at::MemoryFormat::ChannelsLast),
            at::zeros({0}), at::full({3}, rank, at::kLong),
            wave({5}, rank).to(at::kDouble)};
      };
      Tensors own = of_rank(group->rank());
      for (at::Tensor& tensor : own) tensor = tensor.to(device);
      tree_reduce(*group, own);
      for (const std::size_t i : {0, 1, 2, 4}) {
        Tensors leaves;
        for (int rank = 0; rank < ranks; ++rank)
          leaves.push_back(of_rank(rank)[i]);
        EXPECT_TRUE(own[i].cpu().equal(tree_of(leaves, 0, leaves.size())));
      }
      EXPECT_TRUE(own[3].cpu().equal(at::full({3}, ranks - 1, at::kLong)));
      if (ranks == 1) return;
      const auto made = kinds(*group);
      EXPECT_THAT(made, Contains(OperationKind::kAllToAll).Times(2));
      EXPECT_THAT(made, Contains(OperationKind::kAllGather).Times(2));
      EXPECT_THAT(made, Contains(OperationKind::kAllReduce).Times(1));
    });
}

class LogicalShardsOnCuda : public CudaRanks {
 protected:
  static Tensors learn(const Group& group, at::Device device,
                       at::ScalarType type) {
    const auto net = std::make_shared<NetWithBatchNorm>();
    net->to(device, type);
    LogicalShards shards(net, {.group = group, .count = kTreeShards});
    for (int step = 0; step < 3; ++step) {
      shards.run([&](const LogicalShard& shard) {
        const Share share =
            share_of_batch(step, shard.index, kTreeShards, kTreeShards);
        const at::Tensor output = net->forward(share.input.to(device, type));
        loss_of(output.to(at::kFloat), share.target.to(device)).backward();
      });
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters())
        parameter.sub_(parameter.grad(), 0.1);
    }
    Tensors state = net->parameters();
    for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer);
    return copies_of(on_cpu(state));
  }
};

TEST_F(LogicalShardsOnCuda, GiveTheSameBitsOnAnyNumberOfRanks) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    Tensors alone, of_cpu;
    run_ranks(kBackend, 1, [&](const Group& group) {
      of_cpu = learn(group, at::kCPU, type);
    });
    run(1, [&](const Group& group) {
      alone = learn(group, gpu_of(*group), type);
    });
    for (const int ranks : {2, 4})
      run(ranks, [&](const Group& group) {
        EXPECT_TRUE(are_equal(learn(group, gpu_of(*group), type), alone))
            << ranks;
      });
    // Only parameters: the fake's batch normalization does not update running
    // statistics.
    const auto parameters = NetWithBatchNorm().parameters().size();
    alone.resize(parameters);
    of_cpu.resize(parameters);
    EXPECT_LE(largest_difference(alone, of_cpu), kTolerance);
  }
}

}  // namespace
}  // namespace lockstep
