#include "lockstep/train/metrics.h"

#include <array>
#include <span>

namespace lockstep {

Metrics reduce(const Metrics& mine, ProcessGroup& group) {
  std::array<double, 1> loss{mine.loss};
  std::array<std::int64_t, 2> counts{mine.correct, mine.samples};
  group.all_reduce(view(std::span(loss)), ReduceOp::kSum, {.place = "loss"})
      .wait();
  group.all_reduce(view(std::span(counts)), ReduceOp::kSum, {.place = "counts"})
      .wait();
  return {loss[0], counts[0], counts[1]};
}

}  // namespace lockstep
