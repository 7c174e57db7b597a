#include "src/evaluate/model_outputs.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstddef>
#include <deque>
#include <utility>

#include "lockstep/torch/device_batches.h"
#include "src/torch/device/device_copies.h"

namespace lockstep {
namespace {

// Batches queued on a device beyond the one being read: the device computes
// while the host reads outputs.
constexpr std::size_t kUnreadOutputs = 1;

}  // namespace

void for_each_output(
    Loader& loader, DeviceBatches& batches, const Forward& forward,
    std::chrono::nanoseconds timeout,
    const std::function<void(const at::Tensor& logits,
                             const at::Tensor& labels)>& take) {
  // Sets the number of compute threads before this thread's first matrix
  // product: see train() in apps/trainer/loop/trainer.cc.
  at::get_num_threads();
  const at::NoGradGuard no_grad;
  struct Output {
    CopyToHost logits;
    at::Tensor labels;
  };
  std::deque<Output> unread;
  const auto take_all_but = [&](std::size_t last) {
    for (; unread.size() > last; unread.pop_front())
      take(unread.front().logits.wait(), unread.front().labels);
  };
  const std::size_t ahead = batches.device().is_cpu() ? 0 : kUnreadOutputs;
  while (auto next = loader.next(timeout)) {
    const BatchTensors batch = batches.copy_images(*std::move(next));
    unread.push_back({CopyToHost(forward(batch.images)), batch.labels});
    take_all_but(ahead);
  }
  take_all_but(0);
}

}  // namespace lockstep
