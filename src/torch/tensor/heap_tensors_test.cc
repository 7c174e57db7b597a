// Tests of LibTorch's use of memory that the heap does not see: copies on
// write, and tensors that outlive main().
#include <ATen/ops/_lazy_clone.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <utility>

#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/gradient/reducer.h"
#include "src/torch/tensor/heap_allocator.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

constexpr std::int64_t kHeapElements = kLeastHeapTensor / sizeof(float);

// A peer writes to the tensor's memory, which autograd and LibTorch do not see:
// the clone must have its own memory before the address is published.
TEST(LazyClone, IsMadeBeforePeersWriteToTheTensor) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allocate_tensors_from(group->core().heap());
    for (int i = 0; i < 3; ++i) {
      at::Tensor tensor = torch::full({kHeapElements}, group->rank() + 1.0);
      const at::Tensor clone = at::_lazy_clone(tensor);
      ASSERT_EQ(clone.const_data_ptr(), tensor.const_data_ptr());
      all_reduce(*group, tensor, ReduceOp::kSum).wait();
      EXPECT_TRUE(all_are(tensor, 3));
      EXPECT_TRUE(all_are(clone, group->rank() + 1.0));
    }
  });
}

// The same where the clone itself is reduced.
TEST(LazyClone, IsMadeBeforePeersWriteToIt) {
  run_ranks(kBackend, 2, [](const Group& group) {
    allocate_tensors_from(group->core().heap());
    const at::Tensor tensor = torch::full({kHeapElements}, group->rank() + 1.0);
    at::Tensor clone = at::_lazy_clone(tensor);
    broadcast(*group, clone, 1).wait();
    EXPECT_TRUE(all_are(clone, 2));
    EXPECT_TRUE(all_are(tensor, group->rank() + 1.0));
  });
}

TEST(LazyClone, OfAGradientKeepsItsNumbersWhenThatIsReduced) {
  run_ranks(kBackend, 2, [](const Group& group) {
    at::Tensor weight = torch::zeros({kHeapElements}).requires_grad_();
    const auto reducer = Reducer::make({{"weight", weight}}, group);
    const auto pass = [&] { (weight * (group->rank() + 1)).sum().backward(); };
    at::Tensor kept;
    {
      const NoSync local(reducer->policy());
      pass();
      kept = at::_lazy_clone(weight.grad());
    }
    pass();
    EXPECT_TRUE(all_are(weight.grad(), 3));
    EXPECT_TRUE(all_are(kept, group->rank() + 1));
  });
}

// The test executes the program again, so that its static objects are destroyed
// as in any program.
TEST(TensorsOfTheHeap, MayBeFreedAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto keep_one_and_exit = [] {
    // Made before the heap, so destroyed after all that the heap has made.
    static at::Tensor kept;
    run_ranks(kBackend, 2, [](const Group& group) {
      allocate_tensors_from(group->core().heap());
      if (group->rank() == 0) kept = torch::ones({kHeapElements});
      group->barrier().wait();
    });
    static const at::Tensor made_late = torch::ones({kHeapElements});
    std::exit(all_are(kept, 1) && all_are(made_late, 1) ? 0 : 1);
  };
  EXPECT_EXIT(keep_one_and_exit(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep
