#include "src/torch/tensor/heap_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <thread>
#include <vector>

namespace lockstep {
namespace {

constexpr std::int64_t kLargeElements = kLeastHeapTensor / sizeof(float);

std::shared_ptr<Heap> heap_in_use(std::size_t bytes = std::size_t{1} << 30) {
  const auto heap = Heap::create({.bytes = bytes});
  allocate_tensors_from(heap);
  return heap;
}

bool lies_in(const Heap& heap, const at::Tensor& tensor) {
  return heap.offset_of(tensor.const_data_ptr(), tensor.nbytes()).has_value();
}

TEST(HeapAllocator, GivesLargeTensorsMemoryOfTheHeapAndTakesItBack) {
  const auto heap = heap_in_use();
  {
    const at::Tensor large = torch::ones({kLargeElements});
    EXPECT_TRUE(lies_in(*heap, large));
    EXPECT_FALSE(lies_in(*heap, torch::ones({kLargeElements - 1})));
    EXPECT_GE(heap->bytes_in_use(), large.nbytes());
  }
  EXPECT_EQ(heap->bytes_in_use(), 0u);
}

TEST(HeapAllocator, GivesTheNextStepTheMemoryOfTheLast) {
  const auto heap = heap_in_use();
  const void* const first = torch::empty({kLargeElements}).const_data_ptr();
  EXPECT_EQ(torch::empty({kLargeElements}).const_data_ptr(), first);
}

TEST(HeapAllocator, FallsBackToLibTorchsOwnWhenTheHeapIsFull) {
  const auto heap = heap_in_use(4 * kLeastHeapTensor);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 10; ++i)
    tensors.push_back(torch::full({kLargeElements}, i));
  EXPECT_TRUE(lies_in(*heap, tensors.front()));
  EXPECT_FALSE(lies_in(*heap, tensors.back()));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(tensors[static_cast<std::size_t>(i)].sum().item<double>(),
              i * static_cast<double>(kLargeElements));
  }
}

TEST(HeapAllocator, GivesDetachedMemoryToNoOtherTensor) {
  const auto heap = heap_in_use();
  at::Tensor before = torch::full({kLargeElements}, 3);
  const void* const memory = before.const_data_ptr();
  heap->detach(static_cast<const std::byte*>(memory), before.nbytes());
  EXPECT_TRUE((before == 3).all().item<bool>());
  before.reset();
  const at::Tensor after = torch::ones({kLargeElements});
  EXPECT_TRUE(lies_in(*heap, after));
  EXPECT_NE(after.const_data_ptr(), memory);
}

TEST(HeapAllocator, TakesBackTensorsOfAnEarlierHeap) {
  const auto earlier = heap_in_use();
  at::Tensor tensor = torch::ones({kLargeElements});
  const auto later = heap_in_use();
  EXPECT_TRUE(lies_in(*later, torch::ones({kLargeElements})));
  tensor.reset();
  EXPECT_EQ(earlier->bytes_in_use(), 0u);
}

TEST(HeapAllocator, FreesWhatWasAllocatedRaw) {
  const auto heap = heap_in_use();
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  for (const std::size_t bytes : {std::size_t{64}, 2 * kLeastHeapTensor}) {
    void* const memory = allocator->raw_allocate(bytes);
    allocator->raw_deallocate(memory);
  }
  EXPECT_EQ(heap->bytes_in_use(), 0u);
}

TEST(HeapAllocator, LetsAnyThreadFreeATensor) {
  const auto heap = heap_in_use();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 50; ++i) {
    at::Tensor tensor = torch::full({kLargeElements + i}, i);
    threads.emplace_back([tensor = std::move(tensor), i] {
      EXPECT_EQ(tensor[0].item<int>(), i);
    });
  }
  threads.clear();
  EXPECT_EQ(heap->bytes_in_use(), 0u);
}

TEST(HeapAllocator, KeepsWhatATensorHoldsWhenItGrows) {
  const auto heap = heap_in_use();
  at::Tensor tensor = torch::arange(kLargeElements);
  tensor.resize_({4 * kLargeElements});
  EXPECT_TRUE(lies_in(*heap, tensor));
  EXPECT_EQ(tensor[kLargeElements - 1].item<std::int64_t>(),
            kLargeElements - 1);
}

// A network that allocates and frees activations of many sizes; the same steps
// without the heap would have the same peak memory.
TEST(HeapAllocator, HoldsAsMuchAfterManyStepsAsAfterOne) {
  const auto heap = heap_in_use();
  torch::nn::Conv2d first(torch::nn::Conv2dOptions(3, 16, 3).padding(1));
  torch::nn::Conv2d second(torch::nn::Conv2dOptions(16, 32, 3).stride(2));
  const auto step = [&](std::int64_t batch) {
    const at::Tensor images = torch::ones({batch, 3, 32, 32});
    torch::relu(second(torch::relu(first(images)))).mean().backward();
  };
  step(16);
  const std::size_t in_use = heap->bytes_in_use();
  const std::size_t kept = heap->bytes_kept();
  for (int i = 0; i < 20; ++i) step(16 - i % 3);
  EXPECT_EQ(heap->bytes_in_use(), in_use);
  EXPECT_LE(heap->bytes_kept(), 2 * kept);
}

}  // namespace
}  // namespace lockstep
