#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// parameter -= combined, on this rank's part of every buffer.
class Descent final : public ShardUpdate {
 public:
  Descent(const ProcessGroup& group, std::span<const Buffer> parameters)
      : parameters_(parameters) {
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto rank = static_cast<std::size_t>(group.rank());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto count = static_cast<std::size_t>(parameters[i].count);
      const std::size_t begin = count * rank / ranks;
      pieces_.push_back({i, begin, count * (rank + 1) / ranks - begin});
    }
  }

  std::span<const Piece> pieces() const override { return pieces_; }

  void update(std::size_t piece, std::size_t begin, std::size_t count,
              const std::byte* combined) override {
    const Piece& of = pieces_[piece];
    auto* const to =
        static_cast<float*>(parameters_[of.buffer].data) + of.begin + begin;
    const auto* const change = reinterpret_cast<const float*>(combined);
    for (std::size_t i = 0; i < count; ++i) to[i] -= change[i];
    updated_ += count;
  }

  std::size_t updated() const { return updated_; }

 private:
  std::span<const Buffer> parameters_;
  std::vector<Piece> pieces_;
  std::size_t updated_ = 0;
};

// Buffers in the group's memory, with all elements `value`.
std::vector<Buffer> filled(ProcessGroup& group,
                           const std::vector<std::int64_t>& counts, float value,
                           std::vector<std::shared_ptr<std::byte>>& keep) {
  std::vector<Buffer> buffers;
  for (const std::int64_t count : counts) {
    keep.push_back(group.allocate(static_cast<std::size_t>(count) * 4 + 4));
    auto* const data = reinterpret_cast<float*>(keep.back().get());
    std::fill_n(data, count, value);
    buffers.push_back({data, count, DataType::kFloat32});
  }
  return buffers;
}

bool all_are(std::span<const Buffer> buffers, float value) {
  return std::ranges::all_of(buffers, [value](const Buffer& buffer) {
    const auto* const data = static_cast<const float*>(buffer.data);
    return std::all_of(data, data + buffer.count,
                       [value](float element) { return element == value; });
  });
}

class ShardedUpdate : public testing::TestWithParam<int> {};

TEST_P(ShardedUpdate, ChangesEveryParameterOnceAndGivesItToAll) {
  run_ranks("shm", GetParam(), [](const Group& group) {
    std::vector<std::shared_ptr<std::byte>> keep;
    const std::vector<std::int64_t> counts{1, 0, 7, 100'000, 64, 3};
    const auto gradients =
        filled(*group, counts, static_cast<float>(group->rank() + 1), keep);
    const auto parameters = filled(*group, counts, 100, keep);
    Descent descent(*group, parameters);
    group->barrier().wait();  // all have mapped all heaps
    const auto n = static_cast<float>(group->size());
    const float average = (n + 1) / 2;
    for (int step = 1; step <= 3; ++step) {
      group->core()
          .sharded_update(gradients, parameters, ReduceOp::kAverage, descent)
          .wait();
      EXPECT_TRUE(descent.carried_out);
      EXPECT_TRUE(
          all_are(parameters, 100 - static_cast<float>(step) * average));
    }
    EXPECT_TRUE(all_are(gradients, static_cast<float>(group->rank() + 1)));
    EXPECT_LE(descent.updated(),
              3 * 100'075 / static_cast<std::size_t>(n) + 99);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedUpdate, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST(ShardedUpdateElsewhere, DoesNothingOnAllRanksWhenOneIsOutOfReach) {
  run_ranks("shm", 3, [](const Group& group) {
    std::vector<std::shared_ptr<std::byte>> keep;
    std::vector<float> own(1000, 100);
    const auto gradients = filled(*group, {1000}, 1, keep);
    auto parameters = filled(*group, {1000}, 100, keep);
    if (group->rank() == 1) parameters.front().data = own.data();
    Descent descent(*group, parameters);
    group->core()
        .sharded_update(gradients, parameters, ReduceOp::kSum, descent)
        .wait();
    EXPECT_FALSE(descent.carried_out);
    EXPECT_TRUE(all_are(parameters, 100));
  });
}

TEST(ShardedUpdateElsewhere, DoesNothingBetweenHosts) {
  run_ranks("gloo", 2, [](const Group& group) {
    std::vector<std::shared_ptr<std::byte>> keep;
    const auto gradients = filled(*group, {10}, 1, keep);
    const auto parameters = filled(*group, {10}, 100, keep);
    Descent descent(*group, parameters);
    group->core()
        .sharded_update(gradients, parameters, ReduceOp::kSum, descent)
        .wait();
    EXPECT_FALSE(descent.carried_out);
  });
}

TEST(ShardedUpdateElsewhere, IsAMismatchWithAnAllReduceOfTheSame) {
  run_ranks("shm", 2, [](const Group& group) {
    std::vector<std::shared_ptr<std::byte>> keep;
    const auto gradients = filled(*group, {10}, 1, keep);
    const auto parameters = filled(*group, {10}, 100, keep);
    Descent descent(*group, parameters);
    EXPECT_THROW(
        {
          if (group->rank() == 0)
            group->all_reduce(gradients, ReduceOp::kSum).wait();
          else
            group->core()
                .sharded_update(gradients, parameters, ReduceOp::kSum, descent)
                .wait();
        },
        Mismatch);
    EXPECT_FALSE(descent.carried_out);
  });
}

TEST(ShardedUpdateElsewhere, RefusesListsThatDoNotFit) {
  run_ranks("shm", 1, [](const Group& group) {
    std::vector<std::shared_ptr<std::byte>> keep;
    const auto gradients = filled(*group, {10}, 1, keep);
    const auto parameters = filled(*group, {11}, 100, keep);
    Descent descent(*group, parameters);
    EXPECT_THROW(group->core().sharded_update(gradients, parameters,
                                              ReduceOp::kSum, descent),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep
