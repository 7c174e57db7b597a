#include "src/evaluate/pending_metrics.h"

#include <ATen/ATen.h>

#include <iterator>
#include <utility>

namespace lockstep {

PendingMetrics::PendingMetrics(const at::Tensor& mean_loss,
                               const at::Tensor& logits,
                               const at::Tensor& labels) {
  const at::Tensor correct = logits.argmax(1).eq(labels).sum();
  passes_.push_back({CopyToHost(at::stack({mean_loss.to(at::kDouble).detach(),
                                           correct.to(at::kDouble)})),
                     labels.size(0)});
}

PendingMetrics& PendingMetrics::operator+=(PendingMetrics other) {
  passes_.insert(passes_.end(), std::make_move_iterator(other.passes_.begin()),
                 std::make_move_iterator(other.passes_.end()));
  return *this;
}

Metrics PendingMetrics::read() const {
  Metrics sum;
  for (const Pass& pass : passes_) {
    const auto numbers = pass.numbers.wait().accessor<double, 1>();
    sum += {numbers[0] * static_cast<double>(pass.samples),
            static_cast<std::int64_t>(numbers[1]), pass.samples};
  }
  return sum;
}

}  // namespace lockstep
