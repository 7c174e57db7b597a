#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/training_loop.h"

namespace lockstep {

void MeanMetric::update(double mean, double weight) {
  if (!(weight >= 0 && std::isfinite(weight)))
    throw InvalidArgument(
        fmt::format("MeanMetric: the weight is {}\n"
                    "  next:    pass the number of samples whose mean is "
                    "added, or another finite number of at least 0",
                    weight));
  if (weight == 0) return;
  sum_ += mean * weight;
  weight_ += weight;
}

double MeanMetric::compute(ProcessGroup& group,
                           const CallOptions& options) const {
  std::vector<double> sums{sum_, weight_};
  CallOptions labelled = options;
  if (labelled.label.empty()) labelled.label = "MeanMetric";
  group.all_reduce(view(sums), ReduceOp::kSum, labelled).wait();
  return sums[0] / sums[1];
}

}  // namespace lockstep
