#include "src/evaluate/metrics.h"

#include <vector>

namespace lockstep {

Metrics reduce(const Metrics& mine, ProcessGroup& group) {
  std::vector<double> loss{mine.loss};
  std::vector<std::int64_t> counts{mine.correct, mine.samples};
  group.all_reduce(view(loss), ReduceOp::kSum, {.label = "metrics"}).wait();
  group.all_reduce(view(counts), ReduceOp::kSum, {.label = "metrics"}).wait();
  return {loss[0], counts[0], counts[1]};
}

}  // namespace lockstep
